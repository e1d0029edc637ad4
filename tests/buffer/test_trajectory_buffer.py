"""TrajectoryBuffer as its users meet it: tiers, memory, holds, tensors, and what it says no to."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from dsec.buffer import TrajectoryBuffer
from dsec.errors import BufferFull, BufferTooLarge, LocalError

RNG = np.random.default_rng(0)
NOISE = RNG.integers(0, 256, (600, 40, 40), np.uint8)
MIB = 1 << 20


def pushed(buffer: TrajectoryBuffer, frames: Any, **labels: Any) -> TrajectoryBuffer:
    for t, frame in enumerate(frames):
        buffer.push(frame, t % 3, float(t), False, **labels)
    return buffer


def test_the_calls_of_the_description() -> None:
    torch = pytest.importorskip("torch")
    buffer = TrajectoryBuffer(
        max_length=1000, reward_decay=0.99, gc_threshold_mb=2048, burst_memory_prealloc_mb=512
    )
    buffer.set_quantization_config(
        obs_dtype=torch.float16, obs_quantize=False, reward_dtype=torch.float32
    )
    for t in range(300):
        buffer.push(torch.full((4,), float(t)), torch.tensor(t % 2), 1.0, t % 50 == 49)
    batch = buffer.sample_batch()
    assert batch.obs.shape == batch.next_obs.shape == (32, 4) and batch.obs.dtype == torch.float32
    assert batch.action.shape == batch.reward.shape == batch.done.shape == (32,)
    assert torch.equal(batch.obs[:, 0], torch.from_numpy(batch.step).float())
    assert buffer.rewards.shape == buffer.returns.shape == (300,)
    assert buffer.rewards.dtype == np.float32


def test_tiers_go_by_age() -> None:
    buffer = pushed(TrajectoryBuffer(1000, seed=0), NOISE[:500])
    drawn = np.unique(np.concatenate([buffer.sample_batch(500).step for _ in range(8)]))
    assert drawn.min() == 400 and drawn.max() == 498, "the newest has no successor yet"
    assert buffer.usage().observed == 100 and buffer.usage().steps == len(buffer) == 500
    assert buffer.rewards.tolist() == list(range(500))
    few = pushed(TrajectoryBuffer(50, full_steps=2, compressed_steps=20), NOISE[:200])
    assert len(few) == 50 and few.rewards[0] == 150 and few.usage().observed == 20


def test_memory_is_given_back_when_steps_get_old() -> None:
    buffer = TrajectoryBuffer(10_000, burst_memory_prealloc_mb=0, key_every=8)
    pushed(buffer, NOISE)
    first = buffer.usage()
    for _ in range(5):
        pushed(buffer, NOISE)
    assert buffer.usage().stored <= first.stored * 1.2 and first.stored > 0
    assert buffer.usage().compressed <= first.compressed + (64 << 10)


def test_the_same_seed_draws_the_same() -> None:
    one, two = (pushed(TrajectoryBuffer(100, seed=5), NOISE[:60]) for _ in range(2))
    assert np.array_equal(one.sample_batch(200).step, two.sample_batch(200).step)
    other = pushed(TrajectoryBuffer(100, seed=6), NOISE[:60])
    assert not np.array_equal(one.sample_batch(200).step, other.sample_batch(200).step)


def test_every_step_is_drawn_as_often_as_any_other() -> None:
    buffer = TrajectoryBuffer(400, compressed_steps=None, seed=0)
    for agent, count in (("a", 100), ("b", 301)):
        pushed(buffer, NOISE[:count], agent=agent)
    batch = buffer.sample_batch(40_000)
    share = np.mean([name == "a" for name in batch.agent])
    assert abs(share - 99 / 399) < 0.02
    counts = np.bincount(batch.step[np.array(batch.agent) == "b"], minlength=300)
    assert counts.min() > 50 and counts.max() < 160
    assert set(buffer.sample_batch(50, agent="a").agent) == {"a"}


def test_returns_stop_at_the_end_of_an_episode() -> None:
    buffer = TrajectoryBuffer(10, reward_decay=0.5)
    for reward, done in ((1, False), (2, True), (4, False), (8, False)):
        buffer.push(np.zeros(2), 0, reward, done)
    assert buffer.returns.tolist() == [1 + 0.5 * 2, 2, 4 + 0.5 * 8, 8]
    buffer.push(np.zeros(2), 0, 16, True)
    assert buffer.returns.tolist() == [2, 2, 4 + 0.5 * (8 + 0.5 * 16), 8 + 0.5 * 16, 16]


def test_where_an_episode_ends_there_is_no_next_observation() -> None:
    buffer = TrajectoryBuffer(10, seed=0)
    for t in range(4):
        buffer.push(np.full(2, t), 0, 0.0, t == 3)
    batch = buffer.sample_batch(100)
    assert set(batch.step) == {0, 1, 2, 3}, "the last step of a finished episode can be drawn"
    assert np.array_equal(batch.next_obs[:, 0], np.minimum(batch.step + 1, 3))
    assert np.array_equal(batch.done, batch.step == 3)


@pytest.mark.parametrize("axis", [0, -1])
def test_frames_of_a_stack_are_stored_once(axis: int) -> None:
    frames = NOISE[:400]
    stacks = [np.moveaxis(frames[t : t + 4], 0, axis) for t in range(396)]
    buffer = TrajectoryBuffer(400, compressed_steps=None, burst_memory_prealloc_mb=0, seed=0)
    for t, stack in enumerate(stacks):
        buffer.push(stack if t != 200 else stacks[7], 0, 0.0, t == 199)  # a new episode's stack
    usage = buffer.usage()
    assert usage.stored < usage.plain * 0.26, "noise, so nothing else than sharing helps"
    batch = buffer.sample_batch(300)
    for row, t in enumerate(batch.step):
        assert np.array_equal(batch.obs[row], stacks[7] if t == 200 else stacks[t])


def test_structures_and_dtypes_come_back() -> None:
    def observation(t: int) -> Any:
        return {
            "b": np.full((2, 3), t, np.int16),
            "a": (np.array(t % 2 == 0), np.full(3, t / 7, np.float64)),
            "empty": np.zeros((0, 4), np.float32),
            "c": np.full(2, t + 1j * t),
        }

    buffer = TrajectoryBuffer(200, compressed_steps=None, seed=0)
    for t in range(150):
        obs = observation(t)
        if t % 2:
            obs = {key: obs[key] for key in reversed(obs)}
        buffer.push(obs, {"move": np.float32(t), "turn": t % 4}, t, False)
    batch = buffer.sample_batch(100)
    assert list(batch.obs) == ["b", "a", "empty", "c"]
    assert [batch.obs["b"].dtype, batch.obs["a"][0].dtype] == [np.int16, np.bool_]
    assert batch.obs["empty"].shape == (100, 0, 4)
    assert np.array_equal(batch.obs["b"][:, 0, 0], batch.step)
    assert np.array_equal(batch.obs["a"][0], batch.step % 2 == 0)
    assert np.array_equal(batch.obs["c"][:, 1], batch.step * (1 + 1j))
    assert np.abs(batch.obs["a"][1][:, 0] - batch.step / 7).max() <= 64 / 7 / 510
    assert np.array_equal(batch.action["move"], batch.step.astype(np.float32)), "actions are exact"


@pytest.mark.parametrize("name", ["uint8", "bfloat16", "float32", "float16", "bool", "int64"])
def test_tensors_come_back_as_tensors(name: str) -> None:
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, name)
    rows = [(torch.arange(12).reshape(3, 4) * t % 50).to(dtype) for t in range(150)]
    buffer = TrajectoryBuffer(200, compressed_steps=None, seed=0)
    for t, row in enumerate(rows):
        buffer.push(row, torch.tensor([t, t]), torch.tensor(float(t)), torch.tensor(False))
        row.zero_() if t == 30 else None
    rows[30] = (torch.arange(12).reshape(3, 4) * 30 % 50).to(dtype)
    batch = buffer.sample_batch(100)
    wanted = torch.stack([rows[t] for t in batch.step])
    assert batch.obs.dtype == dtype and batch.reward.dtype == torch.float64
    assert torch.allclose(batch.obs.double(), wanted.double(), atol=50 / 510 + 0.04)
    if name not in ("float32", "float16"):
        assert torch.equal(batch.obs, wanted)
    assert torch.equal(batch.action[:, 0], torch.from_numpy(batch.step))
    for agent in ("x", "y"):
        for row in rows[:40]:
            buffer.push(row, torch.tensor([0, 0]), 0.0, False, agent=agent)
    assert buffer.sample_batch(500).obs.shape == (500, 3, 4)


def test_tensors_of_a_gpu_stay_there() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    rows = torch.arange(300, device="cuda").reshape(-1, 1, 1).repeat(1, 8, 8).to(torch.uint8)
    buffer = TrajectoryBuffer(200, compressed_steps=None, seed=0)
    for t, row in enumerate(rows):
        buffer.push(row, torch.tensor(t, device="cuda"), 1.0, t % 90 == 89)
    batch = buffer.sample_batch(100)
    assert batch.obs.device.type == batch.reward.device.type == "cuda"
    assert torch.equal(batch.obs.cpu(), rows.cpu()[batch.step])
    assert torch.equal(batch.action.cpu(), torch.from_numpy(batch.step))


def test_torch_is_never_imported_for_who_has_none() -> None:
    code = (
        "import sys, numpy as np; from dsec.buffer import TrajectoryBuffer as B\n"
        "b = B(50)\nfor t in range(40): b.push(np.zeros((4, 4)), 0, 1.0, False)\n"
        "b.sample_batch(); sys.exit('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


# ------------------------------------------------------------------ memory


def test_the_threshold_is_never_exceeded_and_the_oldest_goes_first() -> None:
    buffer = TrajectoryBuffer(
        600, gc_threshold_mb=0.5, burst_memory_prealloc_mb=0, compressed_steps=None, key_every=8
    )
    for t, frame in enumerate(NOISE):
        buffer.push(frame, 0, float(t), False)
        assert buffer.usage().total <= MIB // 2
    steps = np.unique(buffer.sample_batch(4000).step)
    assert steps.max() == 598 and 50 < len(steps) < 400
    assert np.array_equal(steps, np.arange(steps[0], 599)), "what is left is the latest"
    assert len(buffer) == 600, "all rewards are there"


def test_what_is_held_is_never_freed() -> None:
    buffer = TrajectoryBuffer(
        600, gc_threshold_mb=0.5, burst_memory_prealloc_mb=0, compressed_steps=40, key_every=8
    )
    for t in range(30):
        buffer.push(NOISE[t], 0, 0.0, t == 29)
    with buffer.hold(episode=0) as hold:
        for t in range(30, 500):
            buffer.push(NOISE[t], 0, 0.0, False)
        batch = buffer.sample_batch(2000)
        assert set(range(30)) <= set(batch.step)
        for row, t in enumerate(batch.step):
            assert np.array_equal(batch.obs[row], NOISE[t])
    hold.release()
    assert set(buffer.sample_batch(2000).step) == set(range(460, 499))


def test_a_push_that_would_cost_what_is_held_is_refused_and_changes_nothing() -> None:
    buffer = TrajectoryBuffer(
        600, gc_threshold_mb=0.5, burst_memory_prealloc_mb=0, compressed_steps=None, key_every=8
    )
    hold = buffer.hold()
    with pytest.raises(BufferFull, match=r"0\.\d+ MiB of 0\.5 MiB .* release a hold"):
        pushed(buffer, NOISE)
    there = len(buffer)
    assert 100 < there < 500 and buffer.usage().total <= MIB // 2
    with pytest.raises(BufferFull):
        buffer.push(NOISE[there], 0, float(there), False)
    assert len(buffer) == there and buffer.usage().observed == there
    batch = buffer.sample_batch(500)
    assert all(np.array_equal(batch.obs[i], NOISE[t]) for i, t in enumerate(batch.step))
    hold.release()
    pushed(buffer, NOISE[:300])
    assert len(buffer) == min(600, there + 300)
    short = TrajectoryBuffer(20)
    short.hold(episode=0)
    with pytest.raises(BufferFull, match="step 0 of agent '' is held, and max_length is 20"):
        pushed(short, NOISE[:30])
    assert len(short) == 20


def test_an_episode_can_be_dropped_at_once() -> None:
    buffer = TrajectoryBuffer(500, compressed_steps=None, burst_memory_prealloc_mb=0, key_every=8)
    for t in range(400):
        buffer.push(NOISE[t], 0, 1.0, t in (149, 299), rollout=t // 200)
    before = buffer.usage()
    kept = buffer.hold(rollout=1)
    buffer.drop(episode=1)
    assert buffer.usage().stored < before.stored * 0.9
    assert set(buffer.sample_batch(5000).step) == {*range(150), *range(200, 399)}
    kept.release()
    buffer.drop(rollout=1, agent="nobody")
    assert buffer.usage().observed == 350 and len(buffer) == 400


def test_too_large_is_refused_with_the_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BufferTooLarge, match="returns take 1,621 MiB, and gc_threshold_mb is 10 "):
        TrajectoryBuffer(100_000_000, gc_threshold_mb=10, burst_memory_prealloc_mb=0)
    small = TrajectoryBuffer(1000, gc_threshold_mb=1, burst_memory_prealloc_mb=0)
    with pytest.raises(BufferTooLarge, match="gc_threshold_mb"):
        small.push(np.zeros((210, 160, 3), np.uint8), 0, 0.0, False)
    assert len(small) == 0
    million = TrajectoryBuffer(1_000_000, gc_threshold_mb=64_000, compressed_steps=None)
    obs = np.zeros((84, 84, 4), np.uint8)
    size = million.footprint(obs, 0)
    assert size.plain == 1_000_000 * (84 * 84 * 4 + 8) and size.most > 25 * 2**30
    monkeypatch.setattr("dsec.buffer.room.available_bytes", lambda: 8 << 30)
    with pytest.raises(
        BufferTooLarge, match=r"may take 26,\d+ MiB, and this machine has 8,192 MiB"
    ):
        million.push(obs, 0, 0.0, False)
    assert isinstance(BufferTooLarge(), MemoryError)


def test_another_agent_has_to_fit_as_well() -> None:
    buffer = TrajectoryBuffer(100, gc_threshold_mb=0.4, burst_memory_prealloc_mb=0, full_steps=40)
    with pytest.raises(BufferTooLarge, match="another agent takes"):
        for i in range(40):
            pushed(buffer, NOISE[:60], agent=f"agent-{i}")
    assert buffer.usage().total <= 0.4 * MIB and len(buffer) >= 60


def test_what_is_preallocated_is_kept_and_not_more_than_needed() -> None:
    buffer = TrajectoryBuffer(2000, compressed_steps=None, burst_memory_prealloc_mb=512)
    size = buffer.footprint(NOISE[0], 0)
    buffer.push(NOISE[0], 0, 0.0, False)
    usage = buffer.usage()
    assert usage.compressed == size.preallocated and 0 < size.preallocated < 2000 * 1600
    assert usage.total == size.fixed + size.preallocated
    pushed(buffer, NOISE)
    buffer.drop()
    assert buffer.usage().compressed >= size.preallocated


# ------------------------------------------------------------------ what it says no to


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"max_length": 0}, "max_length must be a whole number from 1 on, not 0"),
        ({"max_length": 2.5}, "max_length"),
        ({"reward_decay": 1.1}, "reward_decay is a discount from 0 to 1"),
        ({"gc_threshold_mb": 0}, "gc_threshold_mb"),
        ({"gc_threshold_mb": float("inf")}, "gc_threshold_mb"),
        ({"burst_memory_prealloc_mb": 4096}, "part of what gc_threshold_mb"),
        ({"full_steps": 0}, "full_steps"),
        ({"key_every": 1}, "key_every"),
    ],
)
def test_bad_settings(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(LocalError, match=words):
        TrajectoryBuffer(**kwargs)


@pytest.mark.parametrize(
    ("obs", "action", "reward", "words"),
    [
        (np.zeros((40, 41), np.uint8), 0, 0.0, r"obs: expected uint8 \(40, 40\) .* \(40, 41\)"),
        (np.zeros((40, 40), np.float32), 0, 0.0, "expected uint8"),
        ({"a": NOISE[0]}, 0, 0.0, "another structure"),
        ("text", 0, 0.0, "obs"),
        (NOISE[0], [1, 2], 0.0, "action"),
        (NOISE[0], 0.5, 0.0, "action: expected int64"),
        (NOISE[0], 0, float("nan"), "the reward is nan"),
    ],
)
def test_a_bad_push_changes_nothing(obs: Any, action: Any, reward: float, words: str) -> None:
    buffer = pushed(TrajectoryBuffer(100), NOISE[:20])
    with pytest.raises(LocalError, match=words):
        buffer.push(obs, action, reward, False)
    assert len(buffer) == 20
    pushed(buffer, NOISE[:20])


def test_other_things_that_can_not_be() -> None:
    buffer = TrajectoryBuffer(100)
    with pytest.raises(LocalError, match="nothing to sample yet"):
        buffer.sample_batch()
    with pytest.raises(LocalError, match="expected an array of numbers"):
        buffer.push("text", 0, 0.0, False)
    pushed(buffer, NOISE[:1])
    with pytest.raises(LocalError, match="nothing to sample yet"):
        buffer.sample_batch()
    with pytest.raises(LocalError, match="no agent 'x' here"):
        buffer.sample_batch(agent="x")
    with pytest.raises(LocalError, match="batch_size"):
        buffer.sample_batch(0)
    with pytest.raises(LocalError, match="for a byte each set obs_quantize"):
        buffer.set_quantization_config(obs_dtype=np.uint8, obs_quantize=False)
    with pytest.raises(LocalError, match="reward_dtype is float16, float32 or float64"):
        buffer.set_quantization_config(reward_dtype="colour")


def test_rewards_change_their_dtype() -> None:
    buffer = pushed(TrajectoryBuffer(100), NOISE[:20])
    buffer.set_quantization_config(reward_dtype=np.float32)
    buffer.push(NOISE[0], 0, 0.1, False)
    assert buffer.rewards.dtype == np.float32 and buffer.rewards[-1] == np.float32(0.1)
    assert buffer.rewards[:20].tolist() == list(range(20))
