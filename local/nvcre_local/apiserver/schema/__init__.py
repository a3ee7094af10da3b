"""Structural schemas of custom resources: prune, default and validate objects exactly as a kube-apiserver does.

For the embedded API server. Pure: values in, values out; nothing here reads files, serves requests or keeps objects.
`StructuralSchema` is the whole interface; `component_schemas` renders the same schemas for OpenAPI v3 clients.
"""

from nvcre_local.apiserver.schema.causes import Cause, Reason
from nvcre_local.apiserver.schema.node import SchemaError
from nvcre_local.apiserver.schema.openapi import component_schemas, document
from nvcre_local.apiserver.schema.structural import StructuralSchema

__all__ = ["Cause", "Reason", "SchemaError", "StructuralSchema", "component_schemas", "document"]
