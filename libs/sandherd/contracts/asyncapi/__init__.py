"""The AsyncAPI 3.0 documents: one of all subjects, and one for each role of programs that others write."""

from sandherd.contracts.asyncapi.documents import ROLES, document, role_document

__all__ = ["ROLES", "document", "role_document"]
