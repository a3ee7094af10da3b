"""A local cluster needs more than a report does: what is missing is named, with the remedy."""

import pytest
from nvcre_cli import installed, local_cluster
from nvcre_cli.problems import UsageProblem


def test_nothing_is_missing_where_everything_is_installed():
    assert installed.missing_packages() == []


def test_a_package_of_an_extra_that_is_not_there_is_named(monkeypatch):
    listed = ['PyYAML>=6; extra == "cli"', "no-such-package>=1; extra == 'coordinator'", "not-an-extra>=1"]
    monkeypatch.setattr(installed, "requires", lambda _name: listed)
    assert installed.missing_packages() == ["no-such-package"]


def test_a_cluster_is_not_planned_without_them(monkeypatch):
    monkeypatch.setattr(local_cluster, "missing_packages", lambda: ["google-re2"])
    with pytest.raises(UsageProblem, match=r"needs google-re2: install nvcre\[local\]"):
        local_cluster.plan_cluster(
            scenario="healthy", nodes=None, namespaces=(), listen="127.0.0.1:0", keep=False, needs_workload=True
        )
