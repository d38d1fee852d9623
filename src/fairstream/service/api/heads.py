"""The head of a request is bounded as its body is: uvicorn would read one without end, from anyone."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_BYTES = 1 << 18


class BoundedHeads(HttpToolsProtocol):
    """Refuses a request whose head has not ended after so many bytes, about."""

    _n_unfinished = 0
    _is_in_head = True

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # what was on its way when it was refused
        self._n_unfinished = self._n_unfinished + len(data) if self._is_in_head else 0
        if self._n_unfinished > MOST_BYTES:
            self.send_400_response("The head of the request is too long.")
            return
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._is_in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head, self._n_unfinished = False, 0
        super().on_headers_complete()
