"""How Kubernetes writes moments in its objects: metav1.Time and metav1.MicroTime, both in UTC.

https://pkg.go.dev/k8s.io/apimachinery/pkg/apis/meta/v1#Time
"""

from datetime import UTC, datetime


def rfc3339(moment: datetime) -> str:
    """metav1.Time: whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_time(moment: datetime) -> str:
    """metav1.MicroTime, as Leases have it: six decimals."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
