"""Names that other programs know: API groups, labels, annotations, finalizers, derived object names' limits.

Same words as in the CRDs, docs/architecture.md and the reference (spec/reference-behaviour.md 1.8). No logic here.
"""

from __future__ import annotations

from typing import Final

GROUP: Final = "nvcre.nvidia.com"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
TRAINER_API_VERSION: Final = "trainer.kubeflow.org/v1alpha1"

MANAGED_BY: Final = "nvcre"
EVENT_SOURCE: Final = "nvcre-coordinator"

LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_JOB: Final = "nvcre.nvidia.com/job"
LABEL_WORKFLOW: Final = "nvcre.nvidia.com/workflow"
LABEL_PAIR_OF: Final = "nvcre.nvidia.com/pair-of"  # on a Job that tests two nodes: the Job that was too slow
LABEL_PAIR_ROUND: Final = "nvcre.nvidia.com/pair-round"
LABEL_JOBSET: Final = "jobset.sigs.k8s.io/jobset-name"
LABEL_REPLICATED_JOB: Final = "jobset.sigs.k8s.io/replicatedjob-name"
LABEL_RESTART_ATTEMPT: Final = "jobset.sigs.k8s.io/restart-attempt"
LABEL_COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"

ANNOTATION_GROUP_NODES: Final = "nvcre.nvidia.com/group-nodes"
ANNOTATION_COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
ANNOTATION_JOB_UID: Final = "nvcre.nvidia.com/job-uid"
ANNOTATION_BANDWIDTH: Final = "nvcre.nvidia.com/bandwidth-state"  # the same of a BandwidthMeasurement
ANNOTATION_GOODPUT: Final = "nvcre.nvidia.com/goodput-state"  # what a GoodputMeasurement's figures go on from
ANNOTATION_RESTART: Final = "nvcre.nvidia.com/restart"  # on a workload: which restart of the Job it is

JOB_FINALIZER: Final = "nvcre.nvidia.com/finalizer"
BANDWIDTH_FINALIZER: Final = "nvcre.nvidia.com/bandwidthmeasurement-finalizer"

RUNTIME_PATCH_MANAGER: Final = "nvcre.nvidia.com/controller"
PAIR_PATCH_MANAGER: Final = "nvcre.nvidia.com/pair"

PODS_CONFIG_MAP_KEY: Final = "pods.json"
BLAMED_CONFIG_MAP_KEY: Final = "failed-nodes.json"

LAUNCHER: Final = "launcher"
GPU_RESOURCE: Final = "nvidia.com/gpu"
DEFAULT_WORKER: Final = "node"

MAX_WORKLOAD_NAME: Final = 44  # JobSet derives longer child names from it
MAX_OBJECT_NAME: Final = 63
