"""The AsyncAPI 3.0 documents: one for all subjects, and one for each role of programs that users may write."""

from sandherd.contracts.asyncapi.documents import ROLES, document, role_document

__all__ = ["ROLES", "document", "role_document"]
