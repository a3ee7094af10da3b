"""`nvcre-agent inject`: how it tells which Xids there are."""

import pytest
from nvcre_agent.inject_command import spans


@pytest.mark.parametrize(
    ("codes", "said"), [([], ""), ([7], "7"), ([3, 1, 2, 7], "1 to 3, 7"), ([1, 2, 5, 6, 185], "1 to 2, 5 to 6, 185")]
)
def test_codes_are_told_by_the_ends_of_their_runs(codes: list[int], said: str) -> None:
    assert spans(codes) == said
