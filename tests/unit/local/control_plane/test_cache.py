"""Where what was built lies, and when something is missing."""

from dataclasses import replace
from pathlib import Path

import pytest
from nvcre_local.control_plane.cache import Cache, NotBuilt, content_key, root
from nvcre_local.control_plane.projects import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    directory = tmp_path / "modules" / "jobset"
    directory.mkdir(parents=True)
    (directory / "go.mod").write_text("module m\n\ngo 1.26.0\n")
    (directory / "go.sum").write_text("sums\n")
    return Project(
        "jobset", "example.org/jobset", "v1.0.0", directory, {"jobset": "example.org/jobset"}, files=("a/b.yaml",)
    )


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o755)
    return path


def test_the_cache_is_where_xdg_says(tmp_path: Path):
    assert root({"XDG_CACHE_HOME": "/x"}) == Path("/x/nvcre/control-plane")
    assert root({}) == Path.home() / ".cache/nvcre/control-plane"


@pytest.mark.parametrize("file", ["go.mod", "go.sum"])
def test_another_content_of_go_mod_or_go_sum_is_another_folder(project: Project, file: str):
    before = content_key(project)
    (project.module_directory / file).write_text("other\n")
    assert content_key(project) != before


@pytest.mark.parametrize("change", [{"stamp": "x"}, {"files": ()}, {"programs": {}}, {"namespace": "n"}])
def test_other_build_flags_or_files_are_another_folder(project: Project, change: dict):
    assert content_key(replace(project, **change)) != content_key(project)


def test_what_is_built_counts_and_what_is_not_is_named(project: Project, cache: Cache):
    assert (cache.missing_programs(project), cache.missing_files(project)) == (["jobset"], ["b.yaml"])
    built = executable(cache.folder(project) / "bin" / "jobset")
    assert not cache.is_complete(project)
    (cache.folder(project) / "files").mkdir()
    (cache.folder(project) / "files" / "b.yaml").touch()
    assert cache.is_complete(project)
    assert cache.program(project, "jobset") == built


def test_programs_in_kubebuilder_assets_are_used_first(project: Project, cache: Cache, tmp_path: Path):
    executable(cache.folder(project) / "bin" / "jobset")
    given = executable(tmp_path / "assets" / "jobset")
    cache = replace(cache, assets=tmp_path / "assets")
    assert cache.program(project, "jobset") == given


def test_a_project_whose_programs_are_all_given_needs_no_build(project: Project, tmp_path: Path):
    executable(tmp_path / "assets" / "jobset")
    cache = Cache.of({"XDG_CACHE_HOME": str(tmp_path), "KUBEBUILDER_ASSETS": str(tmp_path / "assets")})
    assert cache.is_complete(replace(project, files=()))


def test_a_version_asked_for_besides_the_usual_one_is_not_taken_from_kubebuilder_assets(
    project: Project, tmp_path: Path
):
    executable(tmp_path / "assets" / "jobset")
    other = replace(project, module_directory=project.module_directory / "v0.9.0")
    assert Cache(tmp_path, tmp_path / "assets").missing_programs(other) == ["jobset"]


def test_what_is_not_built_says_how_to_build_it(project: Project, cache: Cache):
    with pytest.raises(NotBuilt, match=r"jobset v1\.0\.0 is not built: run make control-plane"):
        cache.program(project, "jobset")
    with pytest.raises(NotBuilt, match="run make control-plane"):
        cache.file(project, "b.yaml")
