"""Exports and plug-ins in the trainers as installed: ``make test-trainers``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forge.adapters.trainers.base import Arguments
from forge.adapters.trainers.rows import Needs, Row, rows_of
from forge.client import ControlClient
from forge.export import ExportConfig, export
from forge.plugins import tinker as tinker_plugin
from forge.plugins import trl as trl_plugin
from forge.plugins import verl as verl_plugin
from forge.plugins.episodes import blocking
from forge.plugins.trl_worker import ForgeWorker, built
from forge.storage.errors import BadInput
from forge.trainer.advantage import group_advantages
from forge.trainer.config import Baseline
from tests.trainers.conftest import MakeData, a_sample, a_session
from tests.trainers.served import Served, proxied, proxied_elsewhere

pytestmark = pytest.mark.trainers

VOCAB = 256


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers and a tokenizer whose every id is a word."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=512, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    words = {f"w{number}": number for number in range(VOCAB)}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w2"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="w0", eos_token="w1", unk_token="w2"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with proxied_elsewhere(tmp_path_factory.mktemp("trainers")) as there:
        yield there


def group(make_data: MakeData) -> Path:
    """A session of two rows and reward 1, two of one row and rewards 0 and 0.5."""
    samples = [a_sample("s0", 0, [1, 0, 1], row_count=2), a_sample("s0", 1, [0, 1], row_count=2)]
    return make_data(
        [*samples, a_sample("s1"), a_sample("s2")], [a_session("s0", 1.0), a_session("s1", 0.0), a_session("s2", 0.5)]
    )


def written(to: str, data: Path, out: Path, **more: Any) -> Path:
    return export(ExportConfig(to=to, data=data, out=out, **more)).path


def outputs_of(rows: list[Row]) -> list[Any]:
    from forge.adapters.trainers import verl as fields

    theirs = pytest.importorskip("verl.experimental.agent_loop.agent_loop")
    return [theirs.AgentLoopOutput(**fields.output(row), metrics=theirs.AgentLoopMetrics()) for row in rows]


def test_verl_takes_our_outputs() -> None:
    rows, _ = rows_of([a_sample("s0", 0, [1, 0, 1]), a_sample("s0", 1, [0, 1])], Needs())
    first, last = outputs_of(rows)
    told = last.as_dict()
    assert told["prompts"].tolist() == [10, 11, 12]
    assert told["response_mask"].tolist() == [0, 1]
    assert told["rm_scores"].tolist() == [0.0, 1.0]
    np.testing.assert_allclose(told["rollout_log_probs"].numpy(), [0.0, -0.25])
    assert "rm_scores" not in first.as_dict()
    # What its V1 worker does with the outputs of a session, before they go into the queue.
    first.reward_score = last.reward_score
    first.extra_fields["reward_extra_info"] = last.extra_fields["reward_extra_info"]
    utils = pytest.importorskip("verl.utils.tensordict_utils")
    put = utils.list_of_dict_to_tensordict([{**each.as_dict(), "uid": "u"} for each in (first, last)])
    assert len(put) == 2


def test_verls_advantages_of_an_export_are_ours(make_data: MakeData, tmp_path: Path) -> None:
    """A session of two rows counts once: verl's V1 comparison over the rows of our file gives our advantages."""
    utils = pytest.importorskip("verl.trainer.ppo.v1.utils")
    path = written("verl", group(make_data), tmp_path / "v.parquet")
    batch = verl_plugin.load(path, prompt_length=5, response_length=6, pad_id=0)
    batch.batch["token_level_rewards"] = batch.batch["rm_scores"]
    labels = batch.non_tensor_batch
    keys = [f"{uid}_{session}_{row}" for uid, session, row in zip(
        labels["uid"], labels["session_id"], labels["row_index"], strict=True)]  # fmt: skip
    estimator = pytest.importorskip("verl.trainer.ppo.core_algos").AdvantageEstimator.GRPO
    done = utils.compute_advantage_for_multi_trajectories(batch, keys, estimator)
    expected = group_advantages([1.0, 0.0, 0.5], Baseline.STD)
    assert expected is not None
    theirs = [float(row[mask == 1][0]) for row, mask in zip(
        done.batch["advantages"], done.batch["response_mask"], strict=True)]  # fmt: skip
    np.testing.assert_allclose(theirs, [expected[0], *expected], rtol=1e-5)
    assert done.batch["position_ids"][0].tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 0, 0, 0]


async def test_verls_worker_makes_and_runs_our_agent_loop(tmp_path: Path, model_dir: Path) -> None:
    """As its worker does: by the configuration's ``_target_``, with all it passes on."""
    hydra = pytest.importorskip("hydra")
    theirs = pytest.importorskip("verl.experimental.agent_loop.agent_loop")
    omegaconf = pytest.importorskip("omegaconf").OmegaConf
    tokenizer = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(model_dir)
    async with proxied(tmp_path) as there:
        target = "forge.plugins.verl.ForgeAgentLoop"
        entry = omegaconf.create([{"name": "forge", "_target_": target, "settings": there.told()}])
        file = tmp_path / "agents.yaml"
        omegaconf.save(entry, file)
        assert verl_plugin.settings_in(str(file)).control == there.settings.control
        config = omegaconf.create({"actor_rollout_ref": {"rollout": {}}, "data": {}})
        loop = hydra.utils.instantiate(
            config=entry[0],
            trainer_config=theirs.DictConfigWrap(config=config),
            server_manager=None,
            tokenizer=tokenizer,
            processor=None,
            hf_model_type="llama",
            dataset_cls=object,
            data_config=theirs.DictConfigWrap(config.data),
            tools=theirs.ToolListWrap([]),
        )
        assert isinstance(loop, theirs.AgentLoopBase)
        await verl_plugin.announce(there.settings, [there.engine.url], 2)
        row = {"uid": "u", "session_id": 0, "raw_prompt": [{"role": "user", "content": "do it"}], "global_steps": 9}
        made = await loop.run({"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}, **row)
    assert [type(each) for each in made] == [theirs.AgentLoopOutput] * 2
    assert [each.reward_score for each in made] == [None, 1.0]
    assert [each.extra_fields["min_global_steps"] for each in made] == [2, 2]


def test_verls_manager_is_found_by_its_name() -> None:
    theirs = pytest.importorskip("verl.trainer.ppo.v1.agent_loop_tq")
    load = pytest.importorskip("verl.utils.import_utils").load_class_from_fqn
    made = load("forge.plugins.verl.ForgeAgentLoopManager", "AgentLoopManager")
    assert issubclass(made, theirs.AgentLoopManagerTQ)
    pickle = pytest.importorskip("ray.cloudpickle")
    assert pickle.loads(pickle.dumps(made)) is made


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    """With more processors than there are: TransferQueue's actors ask for them."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=32, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def test_verls_manager_registers_its_servers_before_a_batch(served: Served, ray_cluster: Any, tmp_path: Path) -> None:
    """verl's own router tells the addresses; the batch goes on to verl's workers, here one that counts its rows."""
    omegaconf = pytest.importorskip("omegaconf").OmegaConf
    torch = pytest.importorskip("torch")
    router = pytest.importorskip("verl.workers.rollout.router")
    llm_server = pytest.importorskip("verl.workers.rollout.llm_server")
    tensordicts = pytest.importorskip("verl.utils.tensordict_utils")
    file = tmp_path / "agents.yaml"
    omegaconf.save(
        omegaconf.create([{"name": "f", "_target_": "forge.plugins.verl.ForgeAgentLoop", "settings": served.told()}]),
        file,
    )
    rollout = {"agent": {"agent_loop_config_path": str(file)}}
    config = omegaconf.create({"actor_rollout_ref": {"rollout": rollout, "model": {}}})
    balancer = router.get_router_handle(servers={served.engine.url.removeprefix("http://"): None})
    client = llm_server.LLMServerClient(config, balancer)
    manager = verl_plugin.ForgeAgentLoopManager(config, client)

    @ray_cluster.remote
    class Worker:
        def __init__(self) -> None:
            self.rows = 0

        def generate_sequences(self, batch: Any) -> None:
            self.rows += len(batch)

        def seen(self) -> int:
            return self.rows

    manager.agent_loop_workers = [Worker.remote()]
    batch = tensordicts.get_tensordict({"index": torch.arange(4), "uid": list("aabb")}, {"global_steps": 12})
    manager.generate_sequences(batch)
    assert ray_cluster.get(manager.agent_loop_workers[0].seen.remote()) == 4

    async def pool() -> list[tuple[str, Any]]:
        token = Path(served.settings.control_token_file)
        async with ControlClient.from_token_file(served.settings.control, token) as control:
            return [(upstream["url"], upstream["policy_version"]) for upstream in await control.upstreams()]

    assert blocking(pool()) == [(served.engine.url, 12)]


async def test_a_session_goes_through_verls_worker_and_its_transfer_queue(ray_cluster: Any) -> None:
    """Field case 156: two rows, two keys of one session; verl's worker copies the reward and takes our versions."""
    queue = pytest.importorskip("transfer_queue")
    theirs = pytest.importorskip("verl.trainer.ppo.v1.agent_loop_tq").AgentLoopWorkerTQ
    queue.init()
    kind = theirs.__ray_metadata__.modified_class
    worker = object.__new__(kind)  # a whole one wants a model; what is run here reads only these
    worker.processor, worker.reward_loop_worker_handles, worker.distillation_enabled = None, None, False
    rows, _ = rows_of([a_sample("s0", 0, [1, 0, 1]), a_sample("s0", 1, [0, 1])], Needs())
    row = {"uid": "u", "session_id": 0, "global_steps": 9, "raw_prompt": [{"role": "user", "content": "go"}]}
    await worker._agent_loop_postprocess(outputs_of(rows), False, **row)
    tags = queue.kv_list(partition_id="train")["train"]
    assert {key: (tag["min_global_steps"], tag["max_global_steps"]) for key, tag in tags.items()} == {
        "u_0_0": (3, 4),
        "u_0_1": (3, 4),
    }
    held = queue.kv_batch_get(keys=["u_0_0", "u_0_1"], partition_id="train")
    assert [row.tolist() for row in held["rm_scores"].unbind()] == [[0.0, 0.0, 1.0], [0.0, 1.0]]
    assert [row.tolist() for row in held["response_mask"].unbind()] == [[1, 0, 1], [0, 1]]


def test_trl_trains_on_our_rollouts(served: Served, model_dir: Path, tmp_path: Path) -> None:
    """Two steps of GRPO on a model of two layers: recorded ids and rewards go in, weights change."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir)
    before = model.model.layers[0].mlp.up_proj.weight.detach().clone()
    seen: list[dict[str, list[Any]]] = []
    ours = trl_plugin.rollout_func(served.told(run_id="grpo"))

    def watched(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        seen.append(ours(prompts, trainer))
        return dict(seen[-1])

    trainer = trl.GRPOTrainer(
        model=model,
        processing_class=transformers.AutoTokenizer.from_pretrained(model_dir),
        reward_funcs=trl_plugin.recorded_reward,
        rollout_func=watched,
        train_dataset=datasets.Dataset.from_list([{"prompt": "do it"}] * 4),
        args=trl.GRPOConfig(
            output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=2, num_generations=2, use_cpu=True,
            learning_rate=1e-2, report_to=[], save_strategy="no", logging_steps=1, bf16=False,
        ),
    )  # fmt: skip
    trainer.train()
    assert len(seen) == 2
    assert {reward for out in seen for reward in out["reward"]} == {0.0, 1.0}
    assert not torch.equal(before, model.model.layers[0].mlp.up_proj.weight)
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    assert rewards == [0.5, 0.5]


def test_trls_sample_is_built_by_its_fields(served: Served) -> None:
    theirs = pytest.importorskip("trl.experimental.async_grpo.async_rollout_worker").RolloutSample
    worker = ForgeWorker(served.told(run_id="async", concurrency=2), group_size=2)
    worker.start()
    try:
        samples = [worker.rollout_buffer.get(timeout=60) for _ in range(4)]
    finally:
        worker.stop()
    assert {type(sample) for sample in samples} == {theirs}
    for sample in samples:
        assert sample.input_ids.dtype == np.int64
        assert len(sample.input_ids) == len(sample.completion_mask) == len(sample.old_log_probs)
        assert sample.model_version == 0
    with pytest.raises(BadInput, match="wants the field"):
        built(theirs, {})


@pytest.mark.parametrize("completion_only", [None, True])
def test_trls_sft_takes_recorded_ids(
    completion_only: bool | None, make_data: MakeData, model_dir: Path, tmp_path: Path
) -> None:
    """The mask becomes the labels as it stands, with TRL's defaults and with ``completion_only_loss``."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    transformers = pytest.importorskip("transformers")
    path = written("sft-tokens", group(make_data), tmp_path / "s.parquet")
    load = partial(datasets.load_dataset, split="train", cache_dir=str(tmp_path / "cache"))
    rows = load("parquet", data_files=str(path))
    trainer = trl.SFTTrainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(model_dir),
        processing_class=transformers.AutoTokenizer.from_pretrained(model_dir),
        train_dataset=rows,
        args=trl.SFTConfig(
            output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=4, use_cpu=True, report_to=[],
            save_strategy="no", bf16=False, completion_only_loss=completion_only,
        ),
    )  # fmt: skip
    batch = next(iter(trainer.get_train_dataloader()))
    trained = sorted(int((labels != -100).sum()) for labels in batch["labels"])
    assert trained == [1, 2, 3, 3]
    trainer.train()


def test_datasets_reads_conversations(make_data: MakeData, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    path = written("sft", group(make_data), tmp_path / "s.jsonl", arguments=Arguments.STRING)
    load = partial(datasets.load_dataset, split="train", cache_dir=str(tmp_path / "cache"))
    rows = load("json", data_files=str(path))
    assert len(rows) == 4
    function = rows[0]["messages"][1]["tool_calls"][0]["function"]
    assert json.loads(function["arguments"]) == {"cmd": "ls"}


def test_tinker_takes_our_datums(make_data: MakeData, tmp_path: Path) -> None:
    types = pytest.importorskip("tinker").types
    path = written("tinker", group(make_data), tmp_path / "t.jsonl")
    made = list(tinker_plugin.datums(path))
    assert [type(datum) for datum, _ in made] == [types.Datum] * 4
    datum, beside = made[0]
    assert datum.model_input.to_ints() == [10, 11, 12, 100, 101]
    assert datum.loss_fn_inputs["target_tokens"].to_numpy().tolist() == [11, 12, 100, 101, 102]
    assert set(datum.loss_fn_inputs) == {"target_tokens", "logprobs", "advantages"}
    assert beside["session_trainable_tokens"] == 3
    masked = next(iter(tinker_plugin.datums(path, mask=True)))[0]
    assert masked.loss_fn_inputs["mask"].to_numpy().tolist() == [0, 0, 1, 0, 1]
