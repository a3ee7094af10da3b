import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvcre_coordinator.core import naming


def test_the_reference_s_golden() -> None:
    cut = naming.truncated("test-diag-threshold-confirm-0-iter-2", 35)
    assert cut == "test-diag-threshold-confirm-0-10d8f"


@pytest.mark.parametrize(("text", "value"), [("", 0x811C9DC5), ("a", 0xE40C292C), ("foobar", 0xBF9CF968)])
def test_fnv1a_of_its_published_vectors(text: str, value: int) -> None:
    assert naming.fnv1a_32(text) == value


@given(st.text("abcdefghij-", min_size=1, max_size=120), st.integers(12, 63))
def test_a_derived_name_fits_and_is_stable(name: str, maximum: int) -> None:
    cut = naming.truncated(name, maximum)
    assert len(cut) <= maximum
    assert cut == naming.truncated(name, maximum)
    assert cut == name if len(name) <= maximum else cut != name


def test_names_of_children() -> None:
    assert naming.workload_name("my-job") == "my-job-workload"
    assert naming.bandwidth_measurement_name("my-job") == "my-job-bandwidth"
    assert naming.goodput_measurement_name("my-job") == "my-job-goodput"
    assert naming.pods_config_map_name("my-job") == "my-job-pods"
    assert len(naming.workload_name("j" * 60)) == 44


@pytest.mark.parametrize("job", ["run", "nccl-all-reduce-of-the-whole-cluster.v2", "a" * 18 + "." + "b" * 234])
def test_the_names_of_hundreds_of_pairs_and_what_is_derived_from_them_are_all_different(job: str) -> None:
    nodes = [f"gpu-{number:04d}" for number in range(1000)]
    pairs = list(zip(nodes[::2], nodes[1::2], strict=True))
    made = [naming.pair_job_name(job, "uid", number, pair) for number in ("1", "proof", "2") for pair in pairs]
    assert len({naming.workload_name(name) for name in made}) == len(made)
    assert all(naming.workload_name(name) == f"{name}-workload" for name in made)
    assert not any(".-" in name or "--" in name for name in made)
