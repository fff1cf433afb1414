"""The arguments and the result of a function as JSON, checked by pydantic.

A job's payload contains the arguments by name, and only those that were given: a default that is
changed later also applies to jobs that wait. What the worker fills in is not in the payload: a
parameter annotated with `Job`, one whose default is `from_context` or `results_before`, and the
argument that a task takes from the jobs before it in a flow.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from pollwise.durations import shown
from pollwise.errors import HandlerError, PayloadError
from pollwise.runtime.jobs import Job
from pollwise.runtime.payloads.typed import explained, hints_of, problems_of
from pollwise.worker.context import from_context
from pollwise.worker.flows.taking import results_before, results_of, taken_by, takes

#: The options of `Task.options`.
JOB_OPTIONS = (
    "key", "priority", "delay", "run_at", "unique", "replace", "debounce", "headers", "limit_group",
)  # fmt: skip

#: Types of binary data, which JSON has not.
BYTES = (bytes, bytearray, memoryview)
NOT_JSON = (
    "binary data is not JSON. Take text, such as base64.b64encode(data).decode(), or store the "
    "data elsewhere and take its path or key"
)


class Signature:
    """The arguments and the result of a task."""

    def __init__(self, kind: str, function: Callable[..., Any]) -> None:
        self.kind = kind
        self._function_name = getattr(function, "__name__", kind)
        self._signature = inspect.signature(function)
        hints = hints_of(f"the task {kind!r}", function)
        #: The names of the parameters that get the job, the context, and the results before it.
        self.job_names: list[str] = []
        self.context_names: list[str] = []
        self.results_names: list[str] = []
        self._untyped: list[str] = []  # arguments that may be anything
        self._fields: dict[str, str] = {}  # of the model, and the parameters that they are for
        fields: dict[str, Any] = {}
        #: The name and the type of `**rest`, if the task has it.
        self._rest: tuple[str, TypeAdapter[dict[str, Any]]] | None = None
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                raise HandlerError(
                    f"the task {kind!r} takes *{name}, which has no name in a payload; give it "
                    "named arguments, or register it with @worker.handle"
                )
            if parameter.kind is parameter.VAR_KEYWORD:
                with explained(f"the arguments of the task {kind!r}"):
                    form: Any = dict[str, hints.get(name, Any)]  # type: ignore[misc]
                    self._rest = name, TypeAdapter(form)
            elif hints.get(name) is Job:
                self.job_names.append(name)
            elif parameter.default is from_context:
                self.context_names.append(name)
            elif parameter.default is results_before:
                self.results_names.append(name)
            else:
                _refuse_bytes(f"the argument {name} of the task {kind!r}", hints.get(name))
                if hints.get(name, Any) in (Any, object):
                    self._untyped.append(name)
                default = ... if parameter.default is parameter.empty else None
                own = f"argument_{len(fields)}"  # pydantic does not allow every name of a parameter
                fields[own] = (hints.get(name, Any), Field(default, alias=name))
                self._fields[own] = name
        _refuse_bytes(f"the result of the task {kind!r}", hints.get("return"))
        config = ConfigDict(extra="forbid", title=f"arguments of {kind}")
        with explained(f"the arguments of the task {kind!r}"):
            self._arguments: type[BaseModel] = create_model(
                "Arguments", __config__=config, **fields
            )
        with explained(f"the result of the task {kind!r}"):
            self._result: TypeAdapter[Any] = TypeAdapter(hints.get("return", Any))

    def payload(self, args: tuple[Any, ...], given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call as a payload; a PayloadError if they do not fit."""
        try:
            bound = self._own.bind(*args, **given).arguments
        except TypeError as error:
            told = f"{error}{self._advice(given, str(error))}"
            raise PayloadError(f"wrong arguments for the task {self.kind!r}: {told}") from None
        rest = bound.pop(self._rest[0], {}) if self._rest is not None else {}
        if told := self._advice(rest, ""):
            raise PayloadError(f"wrong arguments for the task {self.kind!r}{told}")
        for name in self._untyped:
            if isinstance(bound.get(name), BYTES):
                raise PayloadError(
                    f"the argument {name} of the task {self.kind!r} is {shown(bound[name])}: "
                    f"{NOT_JSON}"
                )
        try:
            checked = self._arguments.model_validate(bound)
            payload = checked.model_dump(mode="json", by_alias=True, exclude_unset=True)
            if self._rest is not None and rest:
                adapter = self._rest[1]
                payload |= adapter.dump_python(adapter.validate_python(rest), mode="json")
            return payload
        except (ValidationError, PydanticSerializationError) as error:
            raise PayloadError(
                f"the arguments of the task {self.kind!r} do not fit: {problems_of(error)}"
            ) from None

    def digest(self) -> str:
        """A hash of the arguments and their types; equal for equal declarations."""
        try:
            types: object = self._arguments.model_json_schema(mode="validation")
        except PydanticUserError:  # a type that pydantic cannot describe
            types = [
                (each.alias, each.is_required()) for each in self._arguments.model_fields.values()
            ]
        rest = "" if self._rest is None else self._rest[0]
        text = json.dumps([types, rest], sort_keys=True)
        return blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def names(self) -> list[str]:
        """The names of the arguments."""
        return list(self._fields.values())

    def limit_group(self, by: str, payload: Mapping[str, Any]) -> str | None:
        """The limit group of a call, from its payload: the value of the argument `by`."""
        default = self._signature.parameters[by].default
        return limit_group_of(self.kind, by, payload.get(by, default))

    def arguments(self, payload: Any, job: Job, context: Any) -> dict[str, Any]:
        """The arguments of a run, from its payload; a PayloadError if it no longer fits."""
        what = "the payload does"
        if payload is None:  # put by hand, without one
            payload = {}
        if not isinstance(payload, dict):
            raise PayloadError(
                f"{what} not fit the task {self.kind!r}: it must be an object with the arguments "
                f"by name; these are {', '.join(self.names) or 'none'}"
            )
        if takes(job):
            what = "the argument from the jobs before it, or the payload, does"
            payload = {**payload, self.first_argument(): taken_by(job)}
        rest: dict[str, Any] = {}
        try:
            if self._rest is not None:
                own = {*self._fields.values(), *self._filled}
                rest = self._rest[1].validate_python(
                    {name: value for name, value in payload.items() if name not in own}
                )
                payload = {name: value for name, value in payload.items() if name not in rest}
            checked = self._arguments.model_validate(payload)
        except ValidationError as error:
            problems = problems_of(error, secret=job.sealed is not None)
            raise PayloadError(f"{what} not fit the task {self.kind!r}: {problems}") from None
        arguments = {**rest} | {
            self._fields[own]: getattr(checked, own) for own in checked.model_fields_set
        }
        arguments.update(dict.fromkeys(self.job_names, job))
        arguments.update(dict.fromkeys(self.context_names, context))
        arguments.update({name: results_of(job) for name in self.results_names})
        return arguments

    def first_argument(self) -> str:
        """The name of the argument that a task takes from the jobs before it.

        Raises PayloadError if there is no such argument, or the task needs others as well.
        """
        why = "it has no argument that could take it"
        if self._own.parameters:
            first, *others = self._own.parameters.values()
            needed = [
                each.name
                for each in others
                if each.default is each.empty and each.kind is not each.VAR_KEYWORD
            ]
            if not needed:
                return first.name
            why = f"it also needs {', '.join(needed)}"
        raise PayloadError(
            f"the task {self.kind!r} cannot take a result as its first argument: {why}. Give the "
            f"arguments of its call, as in .then({self._function_name}.s(…)). A parameter whose "
            "default is pollwise.results_before gets the results of the jobs before"
        )

    def result_out(self, value: Any, *, secret: bool = False) -> Any:
        """The result of a run, as JSON; a PayloadError if it does not fit the return annotation."""
        try:
            return self._result.dump_python(self._result.validate_python(value), mode="json")
        except (ValidationError, PydanticSerializationError) as error:
            problems = problems_of(error, secret=secret)
            raise PayloadError(
                f"the result of the task {self.kind!r} does not fit: {problems}"
            ) from None

    def result_in(self, value: Any) -> Any:
        """A stored result, as the type that the function returns."""
        try:
            return self._result.validate_python(value)
        except ValidationError as error:
            raise PayloadError(
                f"the stored result does not fit the task {self.kind!r}: {problems_of(error)}"
            ) from None

    def _advice(self, given: Mapping[str, Any], told: str) -> str:
        """Advice about the names in a wrong call: `bind` reports only the first problem."""
        unknown = [name for name in given if name not in self._fields.values()]
        options = [name for name in unknown if name in JOB_OPTIONS]
        if options:
            return f"; options of the job are given as .options({options[0]}=…).put(…)"
        filled = [name for name in unknown if name in self._filled]
        if filled:
            return f"; the worker fills in {', '.join(map(repr, filled))}"
        others = [repr(name) for name in unknown if repr(name) not in told and not self._rest]
        return f"; it has no argument {', '.join(others)}" if others else ""

    @property
    def _own(self) -> inspect.Signature:
        """The signature without what the worker fills in."""
        filled = self._filled
        kept = [each for name, each in self._signature.parameters.items() if name not in filled]
        return self._signature.replace(parameters=kept)

    @property
    def _filled(self) -> set[str]:
        """The names of the parameters that the worker fills in."""
        return {*self.job_names, *self.context_names, *self.results_names}


def _refuse_bytes(what: str, hint: Any) -> None:
    """Raise HandlerError for an annotation with plain bytes: JSON would carry only some of them.

    `Annotated[bytes, …]` is allowed: its notes may say how the bytes are written.
    """
    if hint in BYTES:
        raise HandlerError(f"{what} is annotated with {hint.__name__}, and {NOT_JSON}")
    if get_origin(hint) is not Annotated:
        for each in get_args(hint):
            _refuse_bytes(what, each)


def limit_group_of(kind: str, by: str, value: Any) -> str | None:
    """The value of an argument as the name of a limit group; None and "" are none.

    A number, a UUID, a date and a member of an Enum are as they are in JSON.
    """
    try:
        plain = to_jsonable_python(value)
    except PydanticSerializationError:
        plain = value
    if plain is None or plain == "":
        return None
    if isinstance(plain, str):
        return plain
    if isinstance(plain, int):
        return str(plain).lower()  # true and false, as in JSON
    raise PayloadError(
        f"the argument {by!r} of the task {kind!r} is its limit group, but its value is "
        f"{shown(value)}; it must be text, a whole number, a UUID, a date, an Enum of such, or None"
    )
