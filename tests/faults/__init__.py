"""Nothing is lost, nothing doubled: the plan of faults, and where each test of it stands.

``python -m tests.faults`` (``make soak``) runs it all at the figures of a long run, under an hour; ``FORGE_SEED=N``
repeats one. Every test that records through a proxy process ends with the same comparison of four ledgers
(``ledger.py``).

| id | test, below ``tests/`` |
| --- | --- |
| R1 | faults/test_kill.py::test_no_answer_is_lost_or_doubled |
| R1 | faults/test_kill.py::test_what_could_be_acted_on_before_a_kill_is_in_the_row |
| R1 | faults/test_kill.py::test_a_session_goes_on_after_a_kill_and_gives_all_its_samples |
| R1 | faults/test_workers.py::test_a_killed_worker_loses_and_doubles_nothing |
| R2 | faults/test_points.py::test_killed_at_every_point_the_writer_keeps_what_it_said |
| R2 | storage/test_decoder.py::test_killed_at_every_point_in_turn_it_gives_the_same_files_and_rows |
| R3 | faults/test_syscalls.py::test_every_system_call_fails_once |
| R3 | faults/test_syscalls.py::test_the_decoder_goes_on_where_a_system_call_failed |
| R4 | faults/test_disk.py::test_a_full_disk_is_said_and_everything_goes_on_when_there_is_room |
| R4 | storage/test_readers.py::test_a_full_disk_stops_the_decoder_only_until_there_is_room |
| R5 | faults/test_damage.py::test_no_damage_makes_a_wrong_row |
| R5 | storage/test_journal_damage.py::test_flipped_bits_lose_only_what_they_touch |
| R6 | faults/test_streams.py::test_hundreds_of_streams_go_on_side_by_side |
| R7 | faults/test_kill.py::test_mixed_load_leaves_nothing_behind |
| R8 | proxy/test_disconnect.py::test_the_engine_side_closes_and_the_row_is_aborted |
| R8 | faults/test_leaving.py::test_who_leaves_at_any_moment_is_a_row_and_frees_the_engine |
| R9 | faults/test_engine.py::test_an_answer_cut_at_any_byte_is_one_row_and_a_right_end |
| R9 | proxy/test_faults.py::test_an_answer_that_breaks_off_ends_as_an_error_and_a_truncated_row |
| R10 | proxy/test_stream_bytes.py::test_every_split_point |
| R10 | proxy/test_stream_bytes.py::test_a_line_of_eight_megabytes |
| R10 | faults/test_splits.py::test_a_real_stream_cut_anywhere_says_the_same |
| R10 | faults/test_splits.py::test_other_line_ends_comments_and_a_mark_in_front_say_the_same |
| R10 | proxy/test_sse.py::test_any_cut_gives_the_same_events_and_keeps_every_byte |
| R11 | faults/test_slow.py::test_who_never_asks_and_who_never_reads_hold_up_nobody |
| R11 | proxy/test_bodies.py::test_a_head_that_does_not_come_is_given_up |
| R12 | faults/test_black_hole.py::test_an_engine_that_vanishes_is_given_up_in_time |
| R13 | proxy/test_process.py::test_a_data_directory_in_use_and_a_wrong_token_are_named |
| R13 | storage/test_lease.py::test_a_stopped_decoder_writes_nothing_after_the_takeover |
| R14 | faults/test_clock.py::test_order_and_durations_do_not_follow_the_wall_clock |
| R15 | storage/test_readers.py::test_readers_see_whole_files_while_the_decoder_writes |
| R16 | faults/test_memory.py::test_large_bodies_and_answers_side_by_side_stay_within_memory |
| R17 | faults/test_stop.py::test_a_signal_with_fifty_streams_open |
| R17 | faults/test_stop.py::test_fifty_streams_end_or_are_marked |
| R17 | proxy/workers/test_workers.py::test_sigterm_lets_the_calls_of_all_workers_end |
| R20 | faults/test_upgrade.py::test_a_journal_of_an_earlier_release_is_decoded_alike |
| R20 | storage/test_migrations.py::test_the_files_of_every_version_are_read_back |
| F1 | security/test_control_requests.py::test_no_request_breaks_the_control_plane |
| F2 | security/test_fuzz.py::test_a_spoiled_request_is_translated_or_refused |
| F2 | security/test_fuzz.py::test_a_spoiled_answer_ends_the_clients_all_the_same |
| F2 | security/test_fuzz.py::test_spoiled_bytes_are_bodies_frames_events_and_paths_or_errors |
| F2 | storage/test_journal_damage.py::test_any_file_is_read_without_a_crash |
| F3 | security/test_framing.py::test_what_two_parsers_may_read_differently_is_refused |
| F3 | security/test_differential.py::test_whatever_comes_on_a_socket_the_next_one_is_served |
| F4 | proxy/test_responses_turns.py::test_each_prompt_begins_with_the_last_one_and_its_answer |
| F4 | proxy/test_messages_turns.py::test_each_prompt_begins_with_the_last_one_and_its_answer |
| F4 | proxy/test_gemini_request.py::test_every_turn_extends_the_one_before_and_every_result_has_its_call |
| F4 | proxy/test_gemini_answer.py::test_what_an_engine_said_comes_back_as_it_said_it |
| P1 | security/test_planted.py::test_no_output_holds_a_planted_secret |
"""
