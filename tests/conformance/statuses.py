"""Statuses as their writers leave them: of a Job, a Node and a Pod, with all that kubectl shows of them."""

from .servers import JsonObject

JOB_STATUS: JsonObject = {
    "restartCount": 1,
    "conditions": [
        {
            "type": "InProgress",
            "status": "True",
            "reason": "WorkloadRunning",
            "message": "2 of 2 pods run",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
}
NODE_STATUS: JsonObject = {
    "capacity": {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "8"},
    "allocatable": {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "8"},
    "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "it is ready"}],
    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "same-words"}],
    "nodeInfo": {
        **dict.fromkeys(("machineID", "systemUUID", "bootID", "kubeProxyVersion"), ""),
        "kernelVersion": "6.1",
        "osImage": "Linux",
        "containerRuntimeVersion": "none://1",
        "kubeletVersion": "v1.33.0",
        "operatingSystem": "linux",
        "architecture": "amd64",
    },
}
POD_STATUS: JsonObject = {
    "phase": "Running",
    "podIP": "10.0.0.9",
    "podIPs": [{"ip": "10.0.0.9"}],
    "hostIP": "10.0.0.1",
    "startTime": "2026-01-01T00:00:00Z",
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [
        {
            "name": "main",
            "ready": True,
            "restartCount": 2,
            "image": "none",
            "imageID": "",
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            "lastState": {
                "terminated": {
                    "exitCode": 1,
                    "reason": "Error",
                    "startedAt": "2026-01-01T00:00:00Z",
                    "finishedAt": "2026-01-01T00:00:00Z",
                }
            },
        }
    ],
}
