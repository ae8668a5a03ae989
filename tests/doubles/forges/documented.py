"""A forge whose operations, requests and responses are described by an OpenAPI document."""

from abc import abstractmethod
from typing import Any, ClassVar

from tests.doubles.forges.calls import Call
from tests.doubles.forges.forge import Forge
from tests.doubles.forges.openapi import Document, Mismatch, Operation
from tests.doubles.forges.replies import ABSENT, Reply

_NOT_MODIFIED = 304
_ERROR = 400


class DocumentedForge(Forge):
    """A forge that checks its responses: one that is not as documented becomes 500, and fails the test at the end."""

    general_statuses: ClassVar[frozenset[int]] = frozenset({400, 401, 403, 404, 429, 500, 502, 503})
    """Statuses that every operation may have, documented or not."""
    error_schema: ClassVar[dict[str, Any] | None] = None
    """The schema of the bodies of responses with these statuses."""

    @abstractmethod
    def document_for(self, call: Call) -> Document:
        """The published document of the operations that are served, in the requested version."""

    @abstractmethod
    def refuse_request(self, path: list[Mismatch], others: list[Mismatch]) -> None:
        """Raise the `ApiError` of the forge for an invalid path, or for an invalid query or body."""

    def recognize(self, call: Call) -> None:
        """Find the operation in the document; other paths are refused, and fail the test."""
        found = self.document_for(call).find(call.method, call.path)
        if found is None:
            self.violations.append(f"{call.method} {call.path} is not served by this double")
            return
        operation, call.parameters = found
        call.operation = operation.id

    def operation(self, call: Call) -> Operation:
        """The operation of a recognized call."""
        return self.document_for(call).by_id[call.operation]

    def check_request(self, call: Call) -> None:
        """Record and refuse a request that is not as documented; unknown names are only recorded, as in real forges."""
        operation = self.operation(call)
        path = operation.mismatches_of_parameters("path", call.parameters)
        query = operation.mismatches_of_parameters("query", call.query)
        body = operation.mismatches_of_request(call.body, present=call.body is not ABSENT)
        found = [*path, *query, *body]
        self.invalid_requests += [f"request {call.method} {call.path}: {one}" for one in found]
        self.refuse_request(path, [one for one in (*query, *body) if not one.unknown])

    def check_reply(self, call: Call, reply: Reply) -> Reply:
        """Compare a response with the document: one that is not as documented fails the test."""
        if not call.operation:
            return reply
        mismatches = self._mismatches(call, reply)
        self.violations += [f"response to {call.method} {call.path}: {one}" for one in mismatches]
        return Reply(500, {"message": "the double's response is not as documented"}) if mismatches else reply

    def _mismatches(self, call: Call, reply: Reply) -> list[Mismatch]:
        operation, document = self.operation(call), self.document_for(call)
        if not reply.is_json or reply.status == _NOT_MODIFIED:
            return []
        general = reply.status not in operation.statuses and reply.status in self.general_statuses
        if general or (reply.status >= _ERROR and not operation.describes(reply.status)):
            return document.mismatches(self.error_schema, reply.body) if self.error_schema else []
        return operation.mismatches_of_response(reply.status, reply.body, present=reply.body is not ABSENT)
