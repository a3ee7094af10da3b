"""`nvcre report` of a Job that is not there says which are."""

import pytest
from nvcre_cli.remote import MAX_LISTED, refusal, there_are
from nvcre_kube.client import ApiError

JOBS = [("gpu-a", "burn-in"), ("default", "nccl-all-reduce"), ("gpu-b", "nccl-all-reduce")]


def test_the_most_similar_job_comes_first_and_says_where_it_is() -> None:
    assert there_are(JOBS, "default", "nccl-all") == (
        "there are nccl-all-reduce, nccl-all-reduce (-n gpu-b), burn-in (-n gpu-a)"
    )
    assert there_are(JOBS, "default", "burn").startswith("there are burn-in (-n gpu-a), ")


def test_of_many_a_few_are_listed() -> None:
    assert there_are([("n", f"job-{n}") for n in range(500)], "n", "job").endswith(f" and {500 - MAX_LISTED} more")
    assert there_are([], "n", "job") == "the cluster has no Job of nvcre"


@pytest.mark.parametrize(
    ("status", "told"), [(401, "; renew the credentials"), (403, "; a report reads jobs, "), (500, "500 R: m")]
)
def test_a_refusal_says_what_to_do(status: int, told: str) -> None:
    assert told in refusal(ApiError(status, "R", "m"))
