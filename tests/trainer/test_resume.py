"""A run that is killed goes on as if nothing had happened, and nobody ever sees half of anything."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from forge.policy import weights  # noqa: E402
from forge.storage.errors import BadInput, Exit  # noqa: E402
from forge.storage.records import Sample  # noqa: E402
from forge.trainer import checkpoint  # noqa: E402
from forge.trainer.checkpoint import Manifest  # noqa: E402
from forge.trainer.config import Hyper, TrainConfig  # noqa: E402
from forge.trainer.learner import Learner  # noqa: E402
from forge.trainer.loop import Loop  # noqa: E402
from forge.trainer.metrics import Metrics, read  # noqa: E402
from forge.trainer.start import start_of  # noqa: E402
from tests.trainer.conftest import sample  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 280


@pytest.mark.process
@pytest.mark.model
def test_killed_anywhere_it_ends_with_the_same_losses_and_weights(tiny_model: Path, tmp_path: Path) -> None:
    """R18, R19: ten points from the first file to the last rename; losses and weights equal to the last bit."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.trainer.killed", str(tiny_model), str(tmp_path)],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    plain, *killed = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    assert len(plain["losses"]) == 6
    assert len(killed) == 10
    for each in killed:
        assert each["ended"] == -9, each
        assert each["whole"] == each["went_on"] == 0, (each, done.stderr)
        assert each["losses"] == plain["losses"], each
        assert each["digest"] == plain["digest"], each
    assert {each["resumed"] for each in killed} == {True, False}


FULL = """
import sys
from pathlib import Path
from forge.storage.errors import ForgeError
from tests.trainer.killed import train

try:
    train(Path(sys.argv[1]), Path(sys.argv[2]), resume=False)
except ForgeError as error:
    print(error.message)
    sys.exit(error.exit_code)
"""


@pytest.mark.process
@pytest.mark.model
@pytest.mark.parametrize(("folder", "size"), [("policy", "16k"), ("out", "64k")])
def test_a_full_disk_is_named_and_publishes_nothing(tiny_model: Path, tmp_path: Path, folder: str, size: str) -> None:
    """Where the weights go, and where checkpoints do."""
    full = tmp_path / folder
    full.mkdir()
    script = f'mount -t tmpfs -o size={size} none {full} && exec "$@"'
    mounted = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "-"]
    if subprocess.run([*mounted, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    done = subprocess.run(
        [*mounted, sys.executable, "-c", FULL, str(tiny_model), str(tmp_path)],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == Exit.UNAVAILABLE, done.stderr
    assert str(full) in done.stdout
    assert "No space left" in done.stdout
    assert weights.current(tmp_path) is None


def manifest(**changes: object) -> Manifest:
    fields: dict[str, object] = {
        "step": 2, "batch": 0, "batch_step": 2, "version": 0, "lineage": "main", "base": "/base", "base_version": 0,
        "base_digest": "aa", "told": {"lr": 1e-3, "kl": 0.0},
    }  # fmt: skip
    return Manifest(**(fields | changes))  # type: ignore[arg-type]


def test_the_newest_whole_checkpoint_counts(tmp_path: Path) -> None:
    anchors = {"a-0": np.array([-1.0, -2.0], np.float32)}
    first = checkpoint.write(tmp_path, manifest(), lambda path: None, None)
    second = checkpoint.write(tmp_path, manifest(step=4), lambda path: None, anchors)
    (tmp_path / ".step-00000006-000000.1.tmp").mkdir()  # of a run that was killed
    folder, found = checkpoint.newest(tmp_path)
    assert (folder, found) == (second, manifest(step=4))
    assert not first.exists()
    kept = checkpoint.anchors_of(folder)
    assert kept is not None
    assert np.array_equal(kept["a-0"], anchors["a-0"])


@pytest.mark.parametrize(
    ("digest", "told", "said"),
    [
        ("bb", {"lr": 1e-3, "kl": 0.0}, "another model"),
        ("aa", {"lr": 2e-3, "kl": 0.0}, "lr was 0.001 and is 0.002"),
    ],
)
def test_another_run_is_not_gone_on_with(digest: str, told: dict[str, float], said: str) -> None:
    with pytest.raises(BadInput, match=said) as refused:
        checkpoint.same(manifest(), base_digest=digest, told=told)
    assert refused.value.hint


def test_what_cannot_be_gone_on_with_is_named(tmp_path: Path, tiny_model: Path) -> None:
    def begin(**changes: object) -> None:
        start_of(TrainConfig(data=tmp_path, model=str(tiny_model), **changes), [], print)  # type: ignore[arg-type]

    with pytest.raises(BadInput, match="must be named"):
        begin(resume=True)
    with pytest.raises(BadInput, match="holds no checkpoint"):
        begin(resume=True, out=tmp_path / "none")
    checkpoint.write(tmp_path / "out", manifest(base=str(tiny_model)), lambda path: None, None)
    with pytest.raises(BadInput, match="holds the checkpoint of a run") as refused:
        begin(out=tmp_path / "out")
    assert "--resume" in refused.value.hint
    with pytest.raises(BadInput, match="another model"):
        begin(resume=True, out=tmp_path / "out")
    (tmp_path / "out" / "step-00000002-000000" / "manifest.json").write_text("{")
    with pytest.raises(BadInput, match="no manifest"):
        begin(resume=True, out=tmp_path / "out")


@pytest.mark.model
def test_weights_published_after_the_last_checkpoint_are_not_what_goes_on(tiny_model: Path, tmp_path: Path) -> None:
    """Two batches; the run dies between the second publication and its checkpoint. The first batch's weights are
    served again, under a new version, before the second batch is drawn anew."""
    data, kept, drawn = tmp_path / "data", tmp_path / "kept", list[tuple[int, int]]()

    def source(batch: int, version: int) -> list[Sample] | None:
        drawn.append((batch, version))
        if batch == 1:
            shutil.copytree(data / "out", kept, dirs_exist_ok=True)
        fresh = {"policy_version_min": version, "policy_version_max": version}
        return [sample(n, reward=r, **fresh) for n, r in (("a", 1.0), ("b", 0.0))] if batch < 2 else None

    def run(*, resume: bool) -> None:
        config = TrainConfig(
            data=data, model=str(tiny_model), hyper=Hyper(lr=1e-2), checkpoint_every=1, out=data / "out", resume=resume
        )
        start = start_of(config, [], print)
        learner = Learner(start.base.path, config.hyper)
        learner.load()
        with Metrics(start.out, start.step) as metrics:
            Loop(config, start, learner, metrics, print, None).run(source)

    run(resume=False)
    digests = {n: weights.weight_digest(data / "policy" / str(n)) for n in (1, 2)}
    shutil.rmtree(data / "out")
    shutil.copytree(kept, data / "out")
    run(resume=True)
    assert drawn == [(0, 0), (1, 1), (2, 2), (1, 3), (2, 4)]
    assert [weights.weight_digest(data / "policy" / str(n)) for n in (3, 4)] == [digests[1], digests[2]]
    current = weights.current(data)
    assert current is not None
    assert current.version == 4


@pytest.mark.model
def test_tensors_of_another_model_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(tiny_model)
    config.hidden_size = 8
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "other")
    one, other = Learner(tiny_model, Hyper()), Learner(tmp_path / "other", Hyper())
    one.load()
    other.load()
    one.keep(tmp_path)
    with pytest.raises(BadInput, match=r"checkpoint of another model: .* has shape") as refused:
        other.go_on(tmp_path)
    assert "--model" in refused.value.hint
    (tmp_path / "weights.safetensors").write_bytes(b"half")
    with pytest.raises(BadInput, match="cannot be read"):
        one.go_on(tmp_path)


@pytest.mark.model
def test_a_batch_that_can_only_be_drawn_anew_is_begun_again_as_a_whole(tiny_model: Path, tmp_path: Path) -> None:
    """Rollouts: the run dies between the two steps on its second batch, and what it draws then are other sessions."""
    data, drawn = tmp_path / "data", list[int]()

    def source(batch: int, version: int) -> list[Sample] | None:
        drawn.append(batch)
        fresh = {"policy_version_min": version, "policy_version_max": version}
        names = (f"{len(drawn)}-a", f"{len(drawn)}-b")
        return [sample(n, reward=r, **fresh) for n, r in zip(names, (1.0, 0.0), strict=True)] if batch < 2 else None

    def run(say: Callable[[str], None], *, resume: bool) -> None:
        config = TrainConfig(
            data=data, model=str(tiny_model), steps=2, checkpoint_every=1, out=data / "out", resume=resume,
            drawn_anew=True,
        )  # fmt: skip
        start = start_of(config, [], print)
        learner = Learner(start.base.path, config.hyper)
        learner.load()
        with Metrics(start.out, start.step) as metrics:
            Loop(config, start, learner, metrics, say, None).run(source)

    def dying(line: str) -> None:
        if line.startswith("step 3"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(dying, resume=False)
    run(lambda line: None, resume=True)
    assert drawn == [0, 1, 1, 2]
    lines = read(data / "out" / "metrics.jsonl")
    assert [(line["batch"], line["step"], line["version"]) for line in lines] == [
        (0, 1, 0), (0, 2, 0), (1, 3, 1), (1, 4, 1),
    ]  # fmt: skip
