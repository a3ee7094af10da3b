"""Which API resources we talk to, and the URL path of each."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

JsonObject = dict[str, Any]
"""A Kubernetes object as it travels: the decoded JSON, never a generated model (those cost six times the CPU)."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of an API group, for example ``pods`` of the core group (``group=""``)."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of the collection, of one object, or of its subresource.

        Raises ValueError when ``name`` is given for a namespaced resource without ``namespace``.
        """
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            if self.namespaced and namespace is None:
                raise ValueError(f"{self.kind} {name!r} needs a namespace")
            parts.append(name)
        if subresource is not None:
            parts.append(subresource)
        return "/" + "/".join(quote(part, safe="") for part in parts)


PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
EVENTS = Resource("", "v1", "events", "Event")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)

JOBS = Resource("nvcre.nvidia.com", "v1alpha1", "jobs", "Job")
BANDWIDTH_MEASUREMENTS = Resource("nvcre.nvidia.com", "v1alpha1", "bandwidthmeasurements", "BandwidthMeasurement")
GOODPUT_MEASUREMENTS = Resource("nvcre.nvidia.com", "v1alpha1", "goodputmeasurements", "GoodputMeasurement")
LOG_PROFILES = Resource("nvcre.nvidia.com", "v1alpha1", "logprofiles", "LogProfile", namespaced=False)
NODE_HEALTHS = Resource("nvcre.nvidia.com", "v1alpha1", "nodehealths", "NodeHealth", namespaced=False)

TRAIN_JOBS = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
TRAINING_RUNTIMES = Resource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime")
CLUSTER_TRAINING_RUNTIMES = Resource(
    "trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime", namespaced=False
)
