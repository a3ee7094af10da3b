#!/usr/bin/env bash
# Regenerates protos/nvcre_protos/nvcre_agent_v1_pb2*.py[i] from the .proto file. tests/unit/test_protos.py checks that
# what is committed is current.
set -euo pipefail
cd "$(dirname "$0")"
out="${1:-nvcre_protos}"
python="${PYTHON:-../.venv/bin/python}"
"$python" -m grpc_tools.protoc -I. --python_out="$out" --grpc_python_out="$out" --plugin=protoc-gen-mypy="$(dirname "$python")/protoc-gen-mypy" --plugin=protoc-gen-mypy_grpc="$(dirname "$python")/protoc-gen-mypy_grpc" --mypy_out="$out" --mypy_grpc_out="$out" nvcre_agent_v1.proto
# protoc writes absolute imports; the package has a name.
sed -i 's/^import nvcre_agent_v1_pb2 as/from nvcre_protos import nvcre_agent_v1_pb2 as/' "$out"/nvcre_agent_v1_pb2_grpc.py
sed -i 's/^import nvcre_agent_v1_pb2$/from nvcre_protos import nvcre_agent_v1_pb2/; s/^import nvcre_agent_v1_pb2 as/from nvcre_protos import nvcre_agent_v1_pb2 as/' "$out"/nvcre_agent_v1_pb2_grpc.pyi
