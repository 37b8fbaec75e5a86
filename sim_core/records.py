"""Records of numbers that a user gives: immutable, checked by pydantic; a copy with a field that there is not is refused."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict

from sim_core.errors import SpecError, nearest, shown


class Record(BaseModel):
    """Fields that never change; a key that is none of them is refused, when it is read and when it is copied."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values, which are not checked. Raises SpecError for a name that is no field."""
        known = type(self).model_fields
        for name in update or ():
            if name not in known:
                raise SpecError(f"{type(self).__name__}: {shown(name)} is no field of it, {nearest(name, known)}{self._hint()}")
        return super().model_copy(update=update, deep=deep)

    def _hint(self) -> str:
        """How else a number of it is changed, to end an error."""
        return ""
