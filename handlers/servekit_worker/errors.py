"""The two ways things go wrong here: the worker cannot start, or one item of a batch cannot be answered."""

from __future__ import annotations

from http import HTTPStatus

_TYPES = {
    400: "BadRequestException",
    406: "NotAcceptableException",
    413: "PayloadTooLargeException",
    415: "UnsupportedMediaTypeException",
}


class SetupError(Exception):
    """The worker cannot serve this model; the message says what is wrong and what to do.

    Not a RuntimeError on purpose: TorchServe reports every RuntimeError whose text holds "CUDA" as
    "System out of memory", and every other one as "Unknown exception".
    """


class ItemError(Exception):
    """One item of a batch is answered with ``status`` and ``message``; its neighbours are still served."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = HTTPStatus(status)
        self.message = message

    def body(self) -> dict[str, object]:
        """The JSON body of the answer, in the form that TorchServe's own errors have."""
        kind = _TYPES.get(self.status.value, "PredictionException")
        return {"code": self.status.value, "type": kind, "message": self.message}
