"""Python whose strings of CUDA C are shown as CUDA C."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pygments.lexers import CudaLexer, PythonLexer
from pygments.token import String, _TokenType

STRING = re.compile(r'(?:"""|\'\'\')(.*?)(?:"""|\'\'\')', re.S)
IS_CUDA = re.compile(r"__global__|__device__|#include")


class CudaInPython(PythonLexer):
    """Pygments' lexer of Python, which hands what stands between triple quotes to that of CUDA if it is CUDA."""

    name = "Python with CUDA"

    def get_tokens_unprocessed(
        self, text: str, stack: tuple[str, ...] = ("root",)
    ) -> Iterator[tuple[int, _TokenType, str]]:
        spans = [match.span(1) for match in STRING.finditer(text) if IS_CUDA.search(match[1])]
        for at, kind, value in super().get_tokens_unprocessed(text, stack):
            if spans and at >= spans[0][1]:
                spans.pop(0)
            if not (spans and kind in String and at >= spans[0][0]):
                yield at, kind, value
            elif at == spans[0][0]:
                cuda = text[slice(*spans[0])]
                yield from ((at + i, k, v) for i, k, v in CudaLexer().get_tokens_unprocessed(cuda))
