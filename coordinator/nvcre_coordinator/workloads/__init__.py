"""Adapters between a Job and what it runs: build the object, say where it stands.  Only Kubeflow's TrainJob so far."""

from __future__ import annotations

from typing import Any, Protocol

from nvcre_kube.resources import Resource

from nvcre_coordinator.api.job import Job, WorkloadRef
from nvcre_coordinator.core.observed import Workload


class WorkloadAdapter(Protocol):
    resource: Resource

    def matches(self, job: Job) -> bool:
        """Is spec.workload of this adapter's kind?"""
        ...

    def build(self, job: Job) -> dict[str, Any]:
        """The object to create, owned and labelled by the Job, with the number of its restart where there was one."""
        ...

    def reference(self, job: Job) -> WorkloadRef: ...

    def title(self, job: Job) -> str:
        """What messages call it: TrainJob/my-job-workload."""
        ...

    def owned(self, job: Job, obj: dict[str, Any]) -> bool:
        """Is this object of the expected name the Job's own, of whichever restart?"""
        ...

    def read(self, obj: dict[str, Any]) -> Workload: ...
