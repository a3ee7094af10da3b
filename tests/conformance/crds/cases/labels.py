"""Labels of the workload: the Job page's grammar, limits and reserved keys."""

from ..case import GRAMMAR, INVALID, LABELS, RESERVED, TOO_LONG, TOO_MANY, TYPE, Case, label

CASES = [
    Case(
        "three labels of the page",
        given={
            LABELS: {
                "kueue.x-k8s.io/queue-name": "gpu-team-a",
                "kai.scheduler/queue": "burn-in",
                "environment": "burn-in",
            }
        },
    ),
    Case("empty value is a label", given=label("environment", "")),
    Case("value of 63 characters", given=label("a", "v" * 63)),
    Case("value of 64 characters", given=label("a", "v" * 64), refused=((TOO_LONG, f"{LABELS}.a", "63 bytes"),)),
    Case("value with a space", given=label("a", "x y"), refused=((INVALID, f"{LABELS}.a", "should match"),)),
    Case("value that ends in a dash", given=label("a", "x-"), refused=((INVALID, f"{LABELS}.a", "should match"),)),
    Case(
        "value with a line feed at the end",
        given=label("a", "x\n"),
        refused=((INVALID, f"{LABELS}.a", "should match"),),
    ),
    Case(
        "value that is a number", given={LABELS: {"a": 1}}, refused=((TYPE, f"{LABELS}.a", "must be of type string"),)
    ),
    Case("name of 63 characters", given=label("n" * 63)),
    Case("name of 64 characters", given=label("n" * 64), refused=(GRAMMAR,)),
    Case("prefix of 253 characters", given=label("p" * 253 + "/" + "n" * 63)),
    Case("prefix of 254 characters", given=label("p" * 254 + "/n"), refused=(GRAMMAR,)),
    Case("name of 64 characters after a prefix", given=label("p/" + "n" * 64), refused=(GRAMMAR,)),
    Case("empty key", given=label(""), refused=(GRAMMAR,)),
    Case("empty prefix", given=label("/n"), refused=(GRAMMAR,)),
    Case("empty name", given=label("p/"), refused=(GRAMMAR,)),
    Case("two slashes", given=label("p/q/n"), refused=(GRAMMAR,)),
    Case("prefix in capitals", given=label("Example.com/n"), refused=(GRAMMAR,)),
    Case("prefix with an empty part", given=label("a..b/n"), refused=(GRAMMAR,)),
    Case("prefix with an underscore", given=label("a_b/n"), refused=(GRAMMAR,)),
    Case("prefix that begins with a dash", given=label("-a/n"), refused=(GRAMMAR,)),
    Case("name with capitals, dots and underscores", given=label("a.b/N_a.m-e")),
    Case("name that begins with a dot", given=label(".a"), refused=(GRAMMAR,)),
    Case("name that ends in a dash", given=label("a-"), refused=(GRAMMAR,)),
    Case("name with a letter of another script", given=label("é"), refused=(GRAMMAR,)),
    Case("key with a line feed at the end", given=label("a\n"), refused=(GRAMMAR,)),
    Case("32 labels", given={LABELS: {f"example.com/k{i}": "v" for i in range(32)}}),
    Case(
        "33 labels",
        given={LABELS: {f"k{i}": "v" for i in range(33)}},
        refused=((TOO_MANY, LABELS, "at most 32 items"),),
    ),
    Case("managed-by is the controller's", given=label("app.kubernetes.io/managed-by"), refused=(RESERVED,)),
    Case("nvcre.nvidia.com/job is the controller's", given=label("nvcre.nvidia.com/job"), refused=(RESERVED,)),
    Case("nvcre.nvidia.com/anything is the controller's", given=label("nvcre.nvidia.com/any"), refused=(RESERVED,)),
    Case("a longer domain is not ours", given=label("x.nvcre.nvidia.com/job")),
    Case("another app.kubernetes.io key", given=label("app.kubernetes.io/part-of")),
    Case(
        "malformed and reserved at once",
        given={LABELS: {"nvcre.nvidia.com/job": "x", "-": "x"}},
        refused=(GRAMMAR, RESERVED),
    ),
]
