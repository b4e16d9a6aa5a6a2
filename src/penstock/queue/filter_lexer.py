"""Filter text to tokens, with sqlglot's tokenizer. Pure.

Contract     tokenize(source) -> tokens in order, the last one of class END. Whatever is no token of
             a filter is left to the grammar as a SYMBOL, which no rule takes.
Invariants   Keywords are ASCII: a name that only Unicode upper-cases to IS stays a name.
             Comments are refused: a stored text should not depend on them, and without a rule
             `a --b` would be `a - (-b)`.
Why so       sqlglot's parser understands every dialect and is lenient: it reads `a BETWEEN 1 2`,
             `a NOT NULL` and `'x' 'y'`, takes `current_date` for a function, and its operators do
             not know where they stood. So the tokens are sqlglot's and the grammar is ours
             (filter_syntax.py); a property test compares what both understand.
"""

from __future__ import annotations

from typing import ClassVar

from sqlglot import Tokenizer, TokenType
from sqlglot.errors import TokenError

from penstock.errors import InvalidError
from penstock.queue.filter_text import RESERVED
from penstock.queue.filter_tokens import TEXT_BYTES_MAX, Source, Token, TokenClass


class _Tokenizer(Tokenizer):
    # Words are told apart below, so that `date` or `user` is a header like any other.
    KEYWORDS: ClassVar[dict[str, TokenType]] = {
        "<>": TokenType.NEQ,
        "!=": TokenType.NEQ,
        "<=": TokenType.LTE,
        ">=": TokenType.GTE,
        "--": TokenType.COMMENT,
        "/*": TokenType.COMMENT,
    }
    COMMENTS: ClassVar[list[str | tuple[str, str]]] = []
    HINT_START = ""


def tokenize(source: Source) -> list[Token]:
    text = source.text
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise source.error("not valid Unicode", error.start, error.end) from None
    if size > TEXT_BYTES_MAX:
        raise InvalidError(f"{source.what}: {size} bytes; at most {TEXT_BYTES_MAX} are allowed")
    # A new one each time: it keeps the text, and threads must not share it.
    tokenizer = _Tokenizer()
    try:
        found = tokenizer.tokenize(text)
    except TokenError:
        done = tokenizer.tokens
        start = done[-1].end + 1 if done else 0
        start += len(text[start:]) - len(text[start:].lstrip())
        raise source.error("the quote is not closed", start, len(text)) from None
    tokens = []
    for token in found:
        start, end = token.start, token.end + 1
        # sqlglot reads {# this #} as a comment in every dialect.
        if token.token_type is TokenType.COMMENT or token.comments:
            raise source.error("comments are not supported", start, end)
        match token.token_type:
            case TokenType.IDENTIFIER:
                tokens.append(Token(TokenClass.QUOTED, _unquoted(text[start:end]), start, end))
            case TokenType.STRING:
                tokens.append(Token(TokenClass.STRING, _unquoted(text[start:end]), start, end))
            case TokenType.NUMBER:
                tokens.append(Token(TokenClass.NUMBER, text[start:end], start, end))
            case _:
                tokens.append(_word_or_symbol(text[start:end], start, end))
    tokens.append(Token(TokenClass.END, "", len(text), len(text)))
    return tokens


def _unquoted(text: str) -> str:
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)


def _word_or_symbol(text: str, start: int, end: int) -> Token:
    if not text.isidentifier():
        return Token(TokenClass.SYMBOL, text, start, end)
    if text.isascii() and text.upper() in RESERVED:
        return Token(TokenClass.WORD, text.upper(), start, end)
    return Token(TokenClass.NAME, text, start, end)
