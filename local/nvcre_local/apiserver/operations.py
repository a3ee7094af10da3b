"""The verbs: create, update, patch and delete of objects, as transactions over the store.

Synchronous throughout, so nothing comes between reading the old object and writing the new one.  Knows no HTTP;
refusals are raised as ApiError.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum

import msgspec

from nvcre_local.apiserver import admission, definitions, deletion, errors, objects, views
from nvcre_local.apiserver.builtin import CRD_COLLECTION, UNDELETABLE_NAMESPACES
from nvcre_local.apiserver.errors import ApiError
from nvcre_local.apiserver.resources import Registry, Resource
from nvcre_local.apiserver.schema import Cause
from nvcre_local.apiserver.storage import Json, Key, Store, Stored

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: a generated name is never a word
_NAME_TRIES = 8


class FieldValidation(Enum):
    IGNORE = "Ignore"
    WARN = "Warn"
    STRICT = "Strict"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """`duplicates`: what field validation has to say of the body as text."""

    dry_run: bool = False
    field_validation: FieldValidation = FieldValidation.WARN
    duplicates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """`body` as stored (see `views` for how it is shown)."""

    body: Json
    warnings: list[str] = field(default_factory=list)
    removed: bool = False


def random_suffix() -> str:
    return "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))


class Operations:
    """All writes of the server go through here."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        new_uid: Callable[[], str] = lambda: str(uuid.uuid4()),
        new_suffix: Callable[[], str] = random_suffix,
    ) -> None:
        self.store = store
        self.registry = registry
        self.clock = clock
        self._new_uid = new_uid
        self._new_suffix = new_suffix

    def get(self, resource: Resource, namespace: str, name: str) -> Stored:
        found = self.store.get(Key(resource.lies_in, namespace, name))
        if found is None:
            raise errors.not_found(resource.group, resource.plural, name)
        return found

    # --- create

    def create(self, resource: Resource, namespace: str, body: Json, options: WriteOptions = WriteOptions()) -> Outcome:
        body, warnings = self._decode(resource, namespace, body, options)
        metadata = body["metadata"]
        if metadata.get("resourceVersion"):
            raise errors.bad_request("resourceVersion should not be set on objects to be created")
        if resource.namespaced:
            self._require_namespace(resource, namespace, metadata.get("name", ""))
        name = self._name(resource, namespace, metadata)
        if resource.custom and resource.has_status:
            body.pop("status", None)
        body["metadata"] = objects.born(metadata, namespace=namespace, name=name, uid=self._new_uid(), now=self.clock())
        if resource.custom or resource.lies_in in (CRD_COLLECTION, "pods"):
            body["metadata"]["generation"] = 1
        self._admit(resource, body)
        self._refuse_invalid(resource, body)
        key = Key(resource.lies_in, namespace, name)
        if self.store.get(key) is not None:
            raise errors.already_exists(resource.group, resource.plural, name)
        if options.dry_run:
            return Outcome(body, warnings)
        stored = self.store.put(key, body)
        self._follow_up(resource, stored)
        return Outcome(stored.body, warnings)

    def _name(self, resource: Resource, namespace: str, metadata: Json) -> str:
        name = str(metadata.get("name", ""))
        prefix = metadata.get("generateName", "")
        if name or not prefix:
            return name
        longest = 58
        for _ in range(_NAME_TRIES):
            name = prefix[:longest] + self._new_suffix()
            if self.store.get(Key(resource.lies_in, namespace, name)) is None:
                break
        return name

    def _admit(self, resource: Resource, body: Json) -> None:
        if resource.custom:
            return
        if resource.lies_in == CRD_COLLECTION:
            definitions.default_definition(body)
            body.pop("status", None)
        admission.admit(resource, body)

    def _require_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        found = self.store.get(Key("namespaces", "", namespace))
        if found is None:
            raise errors.not_found("", "namespaces", namespace)
        if "deletionTimestamp" in found.metadata:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            cause = Cause("NamespaceTerminating", "metadata.namespace", f"namespace {namespace} is being terminated")
            raise errors.forbidden(resource.group, resource.plural, name, why, [cause])

    def _follow_up(self, resource: Resource, stored: Stored) -> None:
        """What controllers of a real control plane do at once for our clients' sake."""
        match resource.lies_in:
            case "namespaces":
                accounts = self.registry.find("", "v1", "serviceaccounts")
                if accounts is not None:
                    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
                    self.create(accounts, stored.key.name, account)
            case lies_in if lies_in == CRD_COLLECTION:
                self._serve_definition(stored)

    def _serve_definition(self, stored: Stored) -> None:
        spec = stored.body["spec"]
        self.registry.remove(spec["group"], spec["names"]["plural"])
        for resource in definitions.served_kinds(stored.body):
            self.registry.add(resource)
        status = stored.body.get("status") or definitions.accepted_status(stored.body, self.clock())
        if stored.body.get("status") != status:
            self.store.put(stored.key, {**stored.body, "metadata": {**stored.metadata}, "status": status})

    # --- update

    def update(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Json,
        options: WriteOptions = WriteOptions(),
        *,
        subresource: str = "",
    ) -> Outcome:
        """PUT. `subresource` is "" or "status"."""
        body, warnings = self._decode(resource, namespace, body, options)
        if body["metadata"].get("name", name) != name:
            raise errors.bad_request(
                f"the name of the object ({body['metadata']['name']}) does not match the name on the URL ({name})"
            )
        old = self.get(resource, namespace, name)
        self._require_current(resource, old, body["metadata"])
        if subresource == "status":
            new = self._with_new_status(resource, old, body)
        else:
            new = self._with_new_spec(resource, old, body)
            immutable = list(admission.update_causes(resource, old.body, new))
            if immutable:
                raise errors.invalid(resource.group, resource.kind, name, immutable)
        self._refuse_invalid(resource, new, old.body, subresource=subresource)
        return self._replace(resource, old, new, warnings, dry_run=options.dry_run)

    def _require_current(self, resource: Resource, old: Stored, sent: Json) -> None:
        version = sent.get("resourceVersion")
        if version is None and resource.custom:
            missing = Cause(
                "FieldValueInvalid", "metadata.resourceVersion", "Invalid value: 0: must be specified for an update"
            )
            raise errors.invalid(resource.group, resource.kind, old.key.name, [missing])
        if version is not None and version != str(old.version):
            raise errors.conflict(resource.group, resource.plural, old.key.name)
        uid = sent.get("uid", old.uid)
        if uid != old.uid:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old.uid}"
            raise errors.conflict(resource.group, resource.plural, old.key.name, why)

    def _with_new_spec(self, resource: Resource, old: Stored, body: Json) -> Json:
        new = {**body, "metadata": objects.carried_over(old.metadata, body["metadata"])}
        if resource.has_status:
            new.pop("status", None)
            if "status" in old.body:
                new["status"] = old.body["status"]
        if resource.lies_in == "namespaces":
            new["spec"] = old.body["spec"]
        if "generation" in old.metadata:
            apart = ("metadata", "status") if resource.has_status else ("metadata",)
            if objects.without(old.body, *apart) != objects.without(new, *apart):
                new["metadata"]["generation"] = old.metadata["generation"] + 1
        return new

    @staticmethod
    def _with_new_status(resource: Resource, old: Stored, body: Json) -> Json:
        if resource.custom:
            metadata = dict(old.metadata)
        else:  # a kubelet annotates its node and pods along with their status
            metadata = objects.carried_over(old.metadata, {**old.metadata, **body["metadata"]})
        new = {**objects.without(old.body, "status"), "metadata": metadata}
        if "status" in body:
            new["status"] = body["status"]
        return new

    def _replace(self, resource: Resource, old: Stored, new: Json, warnings: list[str], *, dry_run: bool) -> Outcome:
        if objects.same(old.body, new) or dry_run:
            return Outcome(old.body if objects.same(old.body, new) else new, warnings)
        if deletion.may_go(resource.lies_in, new):
            new["metadata"]["resourceVersion"] = str(self.store.remove(old.key).version)
            return Outcome(new, warnings, removed=True)
        stored = self.store.put(old.key, new)
        if resource.lies_in == CRD_COLLECTION:
            self._serve_definition(stored)
        return Outcome(stored.body, warnings)

    # --- patch

    def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        change: Callable[[Json], Json],
        options: WriteOptions = WriteOptions(),
        *,
        subresource: str = "",
    ) -> Outcome:
        """`change` makes the new body from the current one, as `resource` shows it; it may alter its argument."""
        old = self.get(resource, namespace, name)
        body = change(msgspec.json.decode(views.shown_raw(resource, old)))
        if not isinstance(body, dict):
            raise errors.unprocessable("the patch does not leave an object")
        metadata = body.get("metadata")
        if isinstance(metadata, dict) and not metadata.get("resourceVersion"):
            metadata["resourceVersion"] = str(old.version)
        return self.update(resource, namespace, name, body, options, subresource=subresource)

    # --- delete

    def delete(self, resource: Resource, namespace: str, name: str, options: deletion.DeleteOptions) -> Outcome:
        stored = self.get(resource, namespace, name)
        problem = deletion.precondition_problem(stored.body, options)
        if problem:
            raise errors.conflict(resource.group, resource.plural, name, problem)
        if resource.lies_in == "namespaces" and name in UNDELETABLE_NAMESPACES:
            raise errors.forbidden("", "namespaces", name, "this namespace may not be deleted")
        if options.propagation is deletion.Propagation.ORPHAN and not options.dry_run:
            self._orphan_dependents(stored.uid)
        match deletion.decide(
            resource.lies_in, stored.body, options, self.clock(), extra_finalizers=self._to_finish(stored, options)
        ):
            case deletion.Remove() if options.dry_run:
                return Outcome(stored.body, removed=True)
            case deletion.Remove():
                return Outcome(self.store.remove(stored.key).body, removed=True)
            case deletion.Mark(body) if options.dry_run:
                return Outcome(body)
            case deletion.Mark(body):
                return Outcome(self.store.put(stored.key, body).body)
            case deletion.Leave():
                return Outcome(stored.body)

    def _to_finish(self, stored: Stored, options: deletion.DeleteOptions) -> tuple[str, ...]:
        if options.propagation is deletion.Propagation.FOREGROUND and self.store.dependents(stored.uid):
            return (deletion.FOREGROUND_FINALIZER,)
        if stored.key.collection == CRD_COLLECTION and self.store.items(stored.key.name):
            return (definitions.CLEANUP_FINALIZER,)
        return ()

    def _orphan_dependents(self, uid: str) -> None:
        for dependent in self.store.dependents(uid):
            self.drop_owner(dependent, {uid})

    def drop_owner(self, stored: Stored, uids: set[str]) -> None:
        kept = [owner for owner in stored.metadata.get("ownerReferences", ()) if owner["uid"] not in uids]
        metadata = objects.without(stored.metadata, "ownerReferences")
        if kept:
            metadata["ownerReferences"] = kept
        self.store.put(stored.key, {**stored.body, "metadata": metadata})

    def settle(self, stored: Stored, body: Json) -> None:
        """A server-side write that may free the object to go (a finalizer of our own was removed)."""
        if deletion.may_go(stored.key.collection, body):
            self.store.remove(stored.key)
        else:
            self.store.put(stored.key, body)

    # --- reading a body

    def _decode(self, resource: Resource, namespace: str, body: Json, options: WriteOptions) -> tuple[Json, list[str]]:
        """The body as it may be stored (metadata cleaned, schema applied), and warnings. Raises ApiError."""
        self._require_kind(resource, body)
        if not resource.custom:
            body = admission.without_nulls(body)
        unknown = [] if options.field_validation is FieldValidation.IGNORE else objects.unknown_metadata(body)
        try:
            metadata = objects.read_metadata(body)
        except objects.MalformedMetadata as error:
            raise errors.bad_request(
                f"{resource.kind} in version {resource.version!r} cannot be handled: {error}"
            ) from None
        if resource.namespaced and metadata.setdefault("namespace", namespace) != namespace:
            raise errors.bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata,
                **objects.without(body, "apiVersion", "kind", "metadata")}  # fmt: skip
        if not resource.custom:
            problem = admission.type_problem(body)
            if problem:
                raise errors.bad_request(
                    f"{resource.kind} in version {resource.version!r} cannot be handled: {problem}"
                )
            admission.default(resource, body)
        elif resource.schema is not None:
            unknown += resource.schema.prune(body)
            resource.schema.default(body)
        listed = [*options.duplicates, *(f'unknown field "{path}"' for path in dict.fromkeys(unknown))]
        if listed and options.field_validation is FieldValidation.STRICT:
            raise errors.strict_decoding(listed)
        warnings = listed if options.field_validation is FieldValidation.WARN else []
        return views.to_stored(resource, body), warnings

    @staticmethod
    def _require_kind(resource: Resource, body: Json) -> None:
        kind, version = body.get("kind"), body.get("apiVersion")
        if resource.custom and not kind:
            raise errors.bad_request("Object 'Kind' is missing in the body of the request")
        if resource.custom and not version:
            raise errors.bad_request("Object 'apiVersion' is missing in the body of the request")
        if version and version != resource.api_version:
            raise errors.bad_request(
                f"the API version in the data ({version}) does not match the expected API version "
                f"({resource.api_version})"
            )
        if kind and kind != resource.kind and resource.custom:
            wrong = Cause("FieldValueInvalid", "kind", f'Invalid value: "{kind}": must be {resource.kind}')
            raise errors.invalid(resource.group, resource.kind, _name_in(body), [wrong])
        if kind and kind != resource.kind:
            raise errors.bad_request(
                f"the kind in the data ({kind}) does not match the expected kind ({resource.kind})"
            )

    def _refuse_invalid(
        self, resource: Resource, body: Json, old: Json | None = None, *, subresource: str = ""
    ) -> None:
        found: list[Cause] = []
        found += objects.metadata_causes(body["metadata"], label_name=resource.label_names)
        if old is not None:
            found += objects.update_causes(old["metadata"], body["metadata"])
        if resource.schema is not None:
            seen = views.shown(resource, body), None if old is None else views.shown(resource, old)
            found = resource.schema.validate(*seen, subresource=subresource, found_before=found)
        elif resource.lies_in == CRD_COLLECTION:
            found += definitions.definition_causes(body)
        else:
            found += admission.causes(resource, body)
        if found:
            raise errors.invalid(resource.group, resource.kind, body["metadata"].get("name", ""), found)


def _name_in(body: Json) -> str:
    metadata = body.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, dict) else ""


__all__ = ["ApiError", "FieldValidation", "Operations", "Outcome", "WriteOptions", "random_suffix"]
