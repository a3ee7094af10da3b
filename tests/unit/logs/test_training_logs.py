"""Training logs of several frameworks, whole and damaged, as the document that `nvcre parse -o json` prints."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from nvcre_logs import saved_log
from nvcre_logs.profile import LOG_FORMAT, LogProfileSpec
from nvcre_logs.saved_log import NamedProfile, guess
from nvcre_logs.training_document import TrainingLog, document

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "tests/corpus"


def shipped() -> list[NamedProfile]:
    manifests = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "daemonset/log-profiles").glob("*.yaml"))]
    found = [
        NamedProfile(
            manifest["metadata"]["name"],
            manifest["metadata"]["annotations"][LOG_FORMAT],
            msgspec.convert(manifest["spec"], LogProfileSpec),
        )
        for manifest in manifests
    ]
    return sorted(found, key=lambda profile: profile.name == "megatron-bridge")


PROFILES = shipped()


def parsed(text: str, chunk: int = 1 << 20) -> dict[str, Any]:
    data = text.encode()
    measured = guess(lambda: (data[start : start + chunk] for start in range(0, len(data), chunk)), PROFILES)
    assert isinstance(measured.log, TrainingLog)
    found: dict[str, Any] = json.loads(json.dumps(document(measured.log, "case")))
    return found


def column(found: dict[str, Any], name: str) -> list[Any]:
    return [record[name] for record in found["records"]]


def megatron(
    step: int, *, stamp: str | None = None, ms: float = 5000.0, extra: str = "", loss: str | None = "2.5E+00"
) -> str:
    prefix = f" [{stamp}]" if stamp else ""
    tail = "" if loss is None else f" lm loss: {loss} |"
    return (
        f"{prefix} iteration {step:8d}/     200 | consumed samples: {step * 256:12d} | elapsed time per iteration "
        f"(ms): {ms:.1f} |{extra} learning rate: 1.000E-04 | global batch size:   256 |{tail} loss scale: 1.0 |"
        f" number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


# Megatron-LM


def test_megatron_before_2024_has_neither_stamp_nor_throughput() -> None:
    found = parsed("".join(megatron(step, ms=80000 + step) for step in (100, 200)))
    assert (found["framework"], found["log_interval"], found["steps"]["target"]) == ("megatron-lm", 100, 200)
    assert column(found, "time_s") == [80.1, 80.2]
    assert column(found, "timestamp") == [None, None]
    assert column(found, "tflops") == [None, None]
    assert (found["step_time"]["mean_s"], found["step_time"]["mean_excluding_first_s"]) == (80.15, 80.2)


@pytest.mark.parametrize(
    ("line", "time_s"),
    [
        (
            "iteration 100/ 300000 | elapsed time per iteration (ms): 1234.5 | lm loss 2.5E+00 | scale 1.0 |",
            1.2345,
        ),
        (
            "iteration 100/ 300 | tokens: 9 | elapsed time per iteration (s): 2.34 | lm loss: 2.5E+00 |",
            2.34,
        ),
    ],
    ids=["2019", "Megatron-DeepSpeed"],
)
def test_megatron_of_2019_and_of_others(line: str, time_s: float) -> None:
    (record,) = parsed(f" {line}\n")["records"]
    assert (record["step"], record["time_s"], record["loss"]) == (100, time_s, 2.5)


def test_a_loss_is_missing_while_fp16_skips_a_step() -> None:
    found = parsed(megatron(1, loss=None) + megatron(2) + megatron(3, loss="nan"))
    assert column(found, "loss") == [None, 2.5, None]


def test_lines_that_are_no_steps() -> None:
    noise = (
        "time (ms) | forward-compute: 100.0 | backward-compute: 200.0\n"
        "------------------------------------------------------\n"
        " validation loss at iteration 100 | lm loss value: 2.1E+00 | lm loss PPL: 8.1E+00 |\n"
        "[before the start of training step] datetime: 2026-03-03 12:00:00\n"
        "MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 4000.0ms/3\n"
    )
    assert column(parsed(noise + megatron(1) + noise + megatron(2) + noise), "step") == [1, 2]


def test_a_restart_from_a_checkpoint_under_torchelastic() -> None:
    stamp = "2026-03-03 12:00:{:02d}.5"
    log = (
        "".join(megatron(step, stamp=stamp.format(step)) for step in range(1, 8))
        + "saving checkpoint at iteration       5 to /ckpt in torch_dist format\n"
        + " [2026-03-03 12:00:09.1] scheduled an async checkpoint save at iteration       5 to /ckpt\n"
        + " [2026-03-03 12:00:10.1] successfully saved checkpoint from iteration       5 to /ckpt [ t 1/2, p 1/4 ]\n"
        + "".join(megatron(step, stamp=stamp.format(step + 5)) for step in range(8, 10))
        + "[default] Worker group FAILED. 3/3 attempts left; will restart worker group\n"
        + "Rendezvous'ing worker group\n"
        + " loading distributed checkpoint from /ckpt at iteration 5\n"
        + "  successfully loaded checkpoint from /ckpt [ t 1/2, p 1/4 ] at iteration 5\n"
        + "".join(megatron(step, stamp=stamp.format(step + 20)) for step in range(6, 12))
    )
    found = parsed(log)
    assert [(event["kind"], event["step"], event["line"]) for event in found["checkpoint_events"]] == [
        ("save_start", 5, 8),
        ("async_scheduled", 5, 9),
        ("save_done", 5, 10),
        ("load_start", 5, 15),
        ("load_done", 5, 16),
    ]
    assert found["restarts"] == [
        {"line": 13, "highest_step": 9, "resume_step": 5, "lost_steps": 4, "kind": "worker_group"}
    ]
    assert found["steps"] == {"first": 1, "last": 11, "unique": 11, "records": 15, "target": 200}
    assert not found["target_reached"]


def test_a_step_that_goes_back_is_a_restart_without_any_other_sign() -> None:
    found = parsed("".join(megatron(step) for step in (10, 20, 30, 20, 30, 40)))
    (restart,) = found["restarts"]
    assert (restart["line"], restart["highest_step"], restart["resume_step"], restart["lost_steps"]) == (4, 30, 10, 20)


def test_a_run_that_begins_from_a_checkpoint_did_not_restart() -> None:
    log = " loading checkpoint from /ckpt at iteration 100\n" + megatron(110) + megatron(120)
    found = parsed(log)
    assert found["restarts"] == []
    assert [event["kind"] for event in found["checkpoint_events"]] == ["load_start"]


def test_megatron_bridge_counts_the_time_of_a_step_once() -> None:
    log = "".join(
        f"Step Time : 14.26s GPU utilization: {util}TFLOP/s/GPU\n"
        + megatron(step, stamp="2026-03-03 12:00:00", ms=14260)
        for step, util in ((1, "58.2"), (2, "59.0MODEL_"))
    )
    found = parsed(log)
    assert (found["framework"], found["steps"]["records"]) == ("megatron-bridge", 2)
    assert column(found, "tflops") == [58.2, 59.0]
    assert found["step_time"] == {"method": "printed", "mean_s": 14.26, "mean_excluding_first_s": 14.26}


# torchtitan


T = "[rank0]:[titan] 2026-05-18 16:07:"


def titan(step: int, second: int, *, rank: int | None = 0, colour: bool = False) -> str:
    red, reset = ("\x1b[31m", "\x1b[39m") if colour else ("", "")
    tag = "" if rank is None else f"[rank{rank}]:"
    return (
        f"{tag}[titan] 2026-05-18 16:07:{second:02d},051 - root - INFO - {red}step: {step:2d}  \x1b[32mloss:  2.91027  "
        f"{reset}memory:  9.46GiB(64.99%)  \x1b[34mtps: 7,094  \x1b[36mtflops: 1,120.51  mfu: 0.16%{reset}\n"
    )


def test_torchtitan_prints_in_colours_from_every_rank() -> None:
    steps = [(1, 8), (10, 26), (20, 46)]
    log = "".join(titan(step, second, rank=rank, colour=True) for step, second in steps for rank in (3, 0, 1, 2))
    found = parsed(log)
    assert column(found, "line") == [2, 6, 10]
    assert column(found, "tflops") == [1120.51] * 3
    assert found["step_time"] == {"method": "timestamp_delta", "mean_s": 2.0, "mean_excluding_first_s": 2.0}
    assert (found["log_interval"], found["steps"]["records"]) == (10, 3)
    untagged = parsed("".join(titan(step, second, rank=None) for step, second in steps for _ in range(4)))
    assert column(untagged, "step") == [1, 10, 20]


def test_torchtitan_checkpoints_say_how_long_they_took_and_not_which_step() -> None:
    log = (
        titan(10, 10)
        + f"{T}11,000 - root - INFO - Saving the checkpoint (or staging if async is enabled).\n"
        + f"{T}17,380 - root - INFO - Finished saving the checkpoint (or staging if async is"
        " enabled) in 6.38 seconds.\n"
        + titan(20, 30)
        + f"{T}40,000 - root - INFO - Loading the checkpoint from outputs/checkpoint/step-10.\n"
        + f"{T}41,000 - root - INFO - Finished loading the checkpoint in 1.50 seconds.\n"
        + titan(20, 50)
        + titan(30, 59)
    )
    found = parsed(log)
    assert [(event["kind"], event["step"], event["duration_s"]) for event in found["checkpoint_events"]] == [
        ("save_start", 10, None),
        ("save_done", 10, 6.38),
        ("load_start", 10, None),
        ("load_done", None, 1.5),
    ]
    assert [(restart["highest_step"], restart["resume_step"]) for restart in found["restarts"]] == [(20, 10)]
    assert found["step_time"]["method"] == "timestamp_delta_within_run"
    assert found["step_time"]["mean_s"] == pytest.approx((2.0 + 0.9) / 2)


# Others


def test_nemo_fields_come_in_any_order() -> None:
    lines = [
        "Training epoch 0, iteration 0/9 | train_step_timing in s: 9.2 | reduced_train_loss: 11.02 | global_step: 0",
        "Training epoch 0, iteration 1/9 | global_step: 1 | lr: 3e-05 | reduced_train_loss: 10.5",
        "[NeMo W 2026-02-05 16:03:52 nemo_logging:405] a warning",
        "Scheduled async checkpoint save for /results/model--val_loss=1.2-step=1-consumed_samples=64.0-last.ckpt",
        "Async checkpoint save for step 2 (/results/model--step=1-last.ckpt) finalized successfully.",
    ]
    found = parsed("\n".join(lines) + "\n")
    assert column(found, "step") == [0, 1]
    assert column(found, "time_s") == [9.2, None]
    assert column(found, "loss") == [11.02, 10.5]
    assert found["steps"]["target"] == 10
    assert [(event["kind"], event["step"]) for event in found["checkpoint_events"]] == [
        ("async_scheduled", 1),
        ("save_done", 2),
    ]


def test_what_nemo_says_while_it_trains_is_no_restart() -> None:
    line = "Training epoch 0, iteration {n}/9 | global_step: {n} | reduced_train_loss: 10.5\n"
    warning = "[NeMo W 2026-02-05 16:03:52 nemo_logging:405] a warning\n"
    steps = [0, 1, 2, 3]
    assert parsed(warning.join(line.format(n=n) for n in steps))["restarts"] == []
    (restart,) = parsed(warning.join(line.format(n=n) for n in [*steps, 2, 3]))["restarts"]
    assert (restart["line"], restart["highest_step"], restart["resume_step"]) == (8, 3, 1)


def test_a_lightning_bar_is_the_step_line() -> None:
    bar = (
        "Epoch 0:   1%|▏  | {n}/77225 [{at}<878:01:48, 41.36s/it, loss=3.1, v_num=, reduced_train_loss=3.090, "
        "global_step={step}.0, consumed_samples=1.63e+6]"
    )
    bars = [(795, "9:07:58", 794), (795, "9:07:59", 794), (796, "9:08:39", 795), (797, "9:09:20", 796)]
    found = parsed("\r".join(bar.format(n=n, at=at, step=step) for n, at, step in bars))
    assert column(found, "step") == [794, 795, 796]
    assert column(found, "line") == [1, 3, 4]
    assert found["step_time"] == {"method": "tqdm_elapsed", "mean_s": 41.0, "mean_excluding_first_s": 41.0}


@pytest.mark.parametrize(
    ("fields", "loss", "time_s"),
    [
        ("loss=3.1, v_num=, reduced_train_loss=3.092, global_step=794.0", 3.092, None),
        ("v_num=0, reduced_train_loss=10.90, global_step=794.000, consumed_samples=1.6e+4", 10.9, None),
        ("v_num=, global_step=794.0, train_step_timing in s=41.40, reduced_train_loss=nan", None, 41.4),
    ],
)
def test_the_fields_of_a_lightning_bar_come_and_go(fields: str, loss: float | None, time_s: float | None) -> None:
    bars = [f"Epoch 0: :   1%|▏| 795/77225 [9:07:{second}<878:01:48, {fields}]" for second in (58, 59)]
    (record,) = parsed("\r".join(bars))["records"]
    assert (record["step"], record["loss"], record["time_s"]) == (794, loss, time_s)


def test_maxtext_hides_the_time_of_a_profiled_step_and_tells_its_target_before() -> None:
    log = "Config param steps: 9\n"
    log += "completed step: 5, seconds: 5.100, TFLOP/s/device: 134.9, total_weights: 96, loss: 3.2\n"
    log += "completed profiler activation/deactivation step: 6, total_weights: 96, loss: 3.1\n"
    log += "Started an asynchronous checkpoint save for step 6\n"
    log += "[Rampup Batch Size Phase], completed step: 7, seconds: 4.900, total_weights: 96, loss: 3.0, mtp_loss: 1.0\n"
    found = parsed(log)
    assert [column(found, name) for name in ("step", "time_s", "loss")] == [
        [5, 6, 7],
        [5.1, None, 4.9],
        [3.2, 3.1, 3.0],
    ]
    assert [(event["kind"], event["step"]) for event in found["checkpoint_events"]] == [("async_scheduled", 6)]
    assert (found["steps"]["target"], found["target_reached"]) == (9, False)
    assert parsed(log + "completed step: 8, seconds: 5.000, total_weights: 96, loss: 3.0\n")["target_reached"]


def mlperf(key: str, value: str = "null", samples: int = 0, name: str = "samples_count") -> str:
    return (
        f':::MLLOG {{"namespace": "", "time_ms": {1770000000123 + samples * 10}, "event_type": "POINT_IN_TIME", '
        f'"key": "{key}", "value": {value}, "metadata": {{"file": "cb.py", "lineno": 161, "{name}": {samples}}}}}\n'
    )


@pytest.mark.parametrize("label", ["", " 0: ", "[rank0]:"])
@pytest.mark.parametrize("name", ["samples_count", "step"])
@pytest.mark.parametrize("batch", ["512", None])
def test_mlperf_counts_samples(label: str, name: str, batch: str | None) -> None:
    log = [mlperf("init_start"), mlperf("global_batch_size", batch) if batch else "", mlperf("run_start")]
    for samples in (512, 1024, 1536):
        log += [
            mlperf("tracked_stats", '{"throughput": 41.5}', samples, name),
            mlperf("tracked_stats", '{"epoch_timing": 1.5}', samples, name),
            mlperf("eval_start", "null", samples),
        ]
    found = parsed("".join(label + line for line in "".join(log).splitlines(keepends=True)))
    assert (found["framework"], column(found, "step")) == ("mlperf", [1, 2, 3] if batch else [512, 1024, 1536])
    assert column(found, "timestamp")[0] == "2026-02-02T02:40:05.243"
    assert found["step_time"]["mean_s"] == (5.12 if batch else 0.01)


def test_the_loss_that_mlperf_tracks_is_the_step_s() -> None:
    found = parsed(mlperf("tracked_stats", '{"throughput": 41.5, "train_loss": 1.25}', 4))
    assert column(found, "loss") == [1.25]


def test_hf_trainer_v5_quotes_its_values_and_evaluates_in_between() -> None:
    log = (
        "***** Running training *****\n  Total optimization steps = 1,000\n"
        "\r  0%|          | 0/1000 [00:00<?, ?it/s]\r  1%|          | 10/1000 [00:20<33:00,  2.00s/it]"
        "\r{'loss': '2.8', 'grad_norm': '1.5', 'learning_rate': '4e-05', 'epoch': '0.25'}\n"
        "\r  0%|          | 0/5 [00:00<?, ?it/s]\r 40%|####      | 2/5 [00:01<00:01,  2.00it/s]"
        "\r{'eval_loss': '2.5', 'epoch': '0.25'}\n"
        "\r  2%|          | 20/1000 [00:45<33:00,  2.00s/it]"
        "\r{'loss': '2.6', 'grad_norm': '1.5', 'learning_rate': '4e-05', 'epoch': '0.5'}\n"
        "Saving model checkpoint to ./out/checkpoint-20\n"
    )
    found = parsed(log, chunk=13)
    assert (column(found, "step"), column(found, "loss")) == ([10, 20], [2.8, 2.6])
    assert (found["steps"]["target"], found["target_reached"]) == (1000, False)
    assert found["step_time"]["mean_s"] == 2.5


def test_hf_trainer_that_continues() -> None:
    bar = " 50%|#####     | {step}/40 [{at}<00:40,  2.00s/it]\r{{'loss': 2.6, 'learning_rate': 4e-05, 'epoch': 0.5}}\n"
    log = (
        bar.format(step=10, at="00:20")
        + bar.format(step=20, at="00:40")
        + "Loading model from ./out/checkpoint-10.\n  Continuing training from global step 10\n"
        + bar.format(step=20, at="00:20")
        + bar.format(step=30, at="00:40")
    )
    found = parsed(log)
    (restart,) = found["restarts"]
    assert (restart["highest_step"], restart["resume_step"], restart["lost_steps"]) == (20, 10, 10)
    assert found["step_time"]["mean_s"] == 2.0


def test_deepspeed_of_2023_beside_a_bar() -> None:
    log = ""
    for step in (10, 20, 30):
        stamp = f"2023-07-25 21:03:{step},037"
        log += f" 33%|###   | {step}/90 [00:20<01:00,  2.00s/it][{stamp}] [INFO] [logging.py:96:log_dist] [Rank 0] "
        log += f"step={step}, skipped=0, lr=[5e-05], mom=[[0.9, 0.999]]\n"
        log += f"[{stamp}] [INFO] [timer.py:215:stop] epoch=0/micro_step={step}/global_step={step}, "
        log += "RunningAvgSamplesPerSec=77.9, CurrSamplesPerSec=77.9, MemAllocated=0.31GB, MaxMemAllocated=10.44GB\n"
        log += "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n"
    log += "[2023-07-25 21:03:31,037] [INFO] [logging.py:96:log_dist] [Rank 0] [Torch] Checkpoint "
    log += "global_step30 is about to be saved!\n[2023-07-25 21:03:35,1] [INFO] "
    log += "[torch_checkpoint_engine.py:33:commit] [Torch] Checkpoint "
    log += "global_step30 is ready now!\n"
    found = parsed(log)
    assert (found["framework"], column(found, "step")) == ("deepspeed", [10, 20, 30])
    assert column(found, "timestamp")[0] == "2023-07-25T21:03:10.037"
    assert found["step_time"] == {"method": "timestamp_delta", "mean_s": 1.0, "mean_excluding_first_s": 1.0}
    assert [(event["kind"], event["step"]) for event in found["checkpoint_events"]] == [
        ("save_start", 30),
        ("save_done", 30),
    ]


def test_nemo_rl_tells_a_step_in_a_block() -> None:
    block = (
        "=============== Step {n}/50 ===============\n▶ Preparing batch...\n\n📊 Training Results:\n"
        "  • Loss: 0.0{n}\n  • Avg Reward: 0.5\n\n⏱️  Timing:\n  • Total step time: {time}s\n"
        "  • policy_training: 25.05s (37.6%)\n"
    )
    found = parsed("".join(block.format(n=n, time=time) for n, time in ((1, 12.5), (2, 66.55), (3, 66.45))))
    assert (found["framework"], found["steps"]["target"]) == ("nemo-rl", 50)
    assert (column(found, "step"), column(found, "time_s")) == ([1, 2, 3], [12.5, 66.55, 66.45])
    assert (column(found, "loss"), column(found, "line")) == ([0.01, 0.02, 0.03], [9, 19, 29])


def test_maxtext_s_own_time_stamps_have_no_year() -> None:
    line = (
        "I0811 21:54:55.531340 1402 metric_logger.py:226] completed step: 9, seconds: 5.667, TFLOP/s/device: 134.924, "
        "Tokens/s/device: 8672.758, total_weights: 196608, loss: 10.374\n"
    )
    assert column(parsed(line), "timestamp") == [None]
    assert column(parsed("2026-08-11T21:54:55.5Z " + line), "timestamp") == ["2026-08-11T21:54:55.500000+00:00"]


PREFIXES = ["2026-03-03T12:00:25.108115123-07:00 ", "[pod/train-node-0-1-x/node] ", "[default7]: ", "7: ", "\x1b[0m"]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("case", sorted(path.stem for path in CORPUS.glob("ts*.log")))
def test_what_launchers_and_terminals_put_around_a_line_changes_no_step(prefix: str, case: str) -> None:
    expected = json.loads((CORPUS / f"{case}.expected.json").read_text())
    text = (CORPUS / f"{case}.log").read_bytes().decode()
    lines = [part for line in text.split("\n") for part in line.split("\r")]
    found = parsed("".join(prefix + line + "\n" for line in lines), chunk=4096)
    assert column(found, "step") == [record["step"] for record in expected["records"]]
    assert column(found, "loss") == [record["loss"] for record in expected["records"]]
    assert column(found, "line") == [record["line"] for record in expected["records"]]
    assert found["framework"] == expected["framework"]


@pytest.mark.parametrize("case", sorted(path.stem for path in CORPUS.glob("ts*.log")))
@given(cut=st.integers(0, 3000), chunk=st.integers(1, 97))
@settings(max_examples=10, deadline=None)
def test_a_log_that_is_cut_anywhere_has_the_steps_before(case: str, cut: int, chunk: int) -> None:
    data = (CORPUS / f"{case}.log").read_bytes()[:cut]
    whole = json.loads((CORPUS / f"{case}.expected.json").read_text())
    profile = next(profile for profile in PROFILES if profile.log_format == whole["framework"])
    measured = saved_log.measure(lambda: (data[start : start + chunk] for start in range(0, len(data), chunk)), profile)
    assert isinstance(measured.log, TrainingLog)
    steps = [record.step for record in measured.log.records]
    expected = [record["step"] for record in whole["records"]]
    assert steps[:-1] == expected[: max(len(steps) - 1, 0)]  # the last number may be cut itself


def test_a_line_of_5_mb_is_skipped_and_the_lines_after_it_keep_their_number() -> None:
    found = parsed(megatron(1) + "x" * 5_000_000 + "\n" + megatron(2), chunk=65536)
    assert column(found, "line") == [1, 3]


@given(st.text(alphabet="iteration /0123456789|elapsedtimeper(ms):\n\r\x1b[", max_size=400))
@settings(max_examples=60, deadline=None)
def test_text_that_looks_like_steps_never_kills_the_reader(text: str) -> None:
    data = text.encode()
    for profile in PROFILES:
        saved_log.measure(lambda: iter((data,)), profile)


def test_torchtitan_says_how_long_a_save_took_without_a_blank_before_it() -> None:
    line = "[titan] 2026-05-18 16:03:06,380 - root - INFO - {}\n"
    log = "".join(
        line.format(text)
        for text in (
            "step: 50  loss:  2.9  tps: 7,094",
            "Saving the checkpoint (or staging if async is enabled).",
            "Finished saving the checkpoint (or staging if async is enabled)in 6.38 seconds.",
            "step: 60  loss:  2.8  tps: 7,094",
        )
    )
    events = parsed(log)["checkpoint_events"]
    assert [(event["kind"], event["duration_s"]) for event in events] == [("save_start", None), ("save_done", 6.38)]


def test_hf_trainer_prints_the_loss_behind_the_bar_on_one_line() -> None:
    bar = " {0:3d}%|###   | {0}/100 [00:{0:02d}<01:00,  1.50it/s]"
    log = "***** Running training *****\n" + "".join(
        bar.format(step) + (f"{{'loss': {step / 10}, 'epoch': 0.02}}\n" if step % 10 == 0 else "\r")
        for step in range(1, 51)
    )
    found = parsed(log)
    assert (column(found, "step"), column(found, "loss")) == ([10, 20, 30, 40, 50], [1.0, 2.0, 3.0, 4.0, 5.0])


def test_a_run_that_does_not_say_from_where_goes_on_from_the_checkpoint() -> None:
    """Steps are logged at other numbers than those that are saved."""
    saved = "  successfully saved checkpoint at iteration     {} to /ckpt\n"
    log = "".join(megatron(step) for step in range(10, 60, 10)) + saved.format(55) + megatron(60) + megatron(70)
    (restart,) = parsed(log + megatron(60) + megatron(70))["restarts"]
    assert (restart["highest_step"], restart["resume_step"], restart["lost_steps"]) == (70, 55, 15)
