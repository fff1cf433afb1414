"""The settings, merged from their layers.

Keys, variables, layers and the reference page all come from the models of the sections. To add a
section, add its model and a field of `Settings`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import Field, PrivateAttr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from pollwise.core.strategies.base import Strategy
from pollwise.settings.fleet import FleetSettings
from pollwise.settings.sections import (
    AgentSettings,
    CodecSettings,
    ControllerSettings,
    OutboxSettings,
    Section,
    WebSettings,
    WorkerSettings,
)
from pollwise.settings.strategies import parameters
from pollwise.settings.values import ValueReader

DEFAULT = "default"
_LAYERS = "layers"


@dataclass(frozen=True)
class SettingRow:
    """One line of `pollwise config show`. `used` is False if it belongs to another strategy."""

    key: str
    value: str
    origin: str
    used: bool = True


class LayerSource(PydanticBaseSettingsSource):
    """One layer, which pydantic-settings merges with the others."""

    def __init__(self, settings_cls: type[BaseSettings], values: dict[str, Any]) -> None:
        super().__init__(settings_cls)
        self._values = values

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._values


class Settings(BaseSettings):
    """All settings, checked. Created by `load`."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    outbox: OutboxSettings = Field(default_factory=OutboxSettings)
    controller: ControllerSettings = Field(default_factory=ControllerSettings)
    agent: AgentSettings = Field(default_factory=AgentSettings)
    fleet: FleetSettings = Field(default_factory=FleetSettings)
    web: WebSettings = Field(default_factory=WebSettings)
    codec: CodecSettings = Field(default_factory=CodecSettings)

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _unused: tuple[SettingRow, ...] = PrivateAttr(())

    @classmethod
    def from_layers(
        cls, layers: list[dict[str, Any]], origins: dict[str, str], unused: list[SettingRow]
    ) -> Settings:
        """Merge layers, the lowest first; `origins` and `unused` are for `table`."""
        arguments: dict[str, Any] = {_LAYERS: layers}  # not a field: the sources below read it
        settings = cls(**arguments)
        settings._origins.update(origins)
        settings._unused = tuple(unused)
        return settings

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # pydantic-settings would use its own names for variables and lose the origin of values.
        # So we read the layers, and it merges and checks them.
        layers = init_settings().get(_LAYERS)
        if layers is None:
            return (init_settings,)
        return tuple(LayerSource(settings_cls, values) for values in reversed(layers))

    def is_set(self, key: str) -> bool:
        """True if this key, or any key of this table, was set. Defaults do not count."""
        return any(each == key or each.startswith(f"{key}.") for each in self._origins)

    def table(self) -> list[SettingRow]:
        """Every value and where it came from, in a stable order."""
        rows: list[SettingRow] = []
        for section, name, field in fields():
            key = f"{section}.{name}"
            value = getattr(getattr(self, section), name.replace(".", "_"))
            if isinstance(value, Strategy):
                rows += self._polling_rows(key, value)
            else:
                rows.append(self._row(key, reader_of(field).text(value)))
        for group, polling in self.fleet.groups.items():
            rows += [self._row(key, text) for key, text in polling.rows(group)]
        return rows

    def _polling_rows(self, table: str, strategy: Strategy) -> Iterator[SettingRow]:
        yield self._row(f"{table}.strategy", strategy.name)
        for each in parameters(type(strategy)):
            value = getattr(strategy, each.key)
            yield self._row(f"{table}.{each.key}", each.reader.text(value))
        yield from (row for row in self._unused if row.key.startswith(f"{table}."))

    def _row(self, key: str, value: str) -> SettingRow:
        return SettingRow(key, value, self._origins.get(key, DEFAULT))

    def origins(self) -> dict[str, str]:
        """The origin of each used value, by key."""
        return {row.key: row.origin for row in self.table() if row.used}


def fields() -> Iterator[tuple[str, str, FieldInfo]]:
    """Every field of every section: the section's name, the field's name, and the field."""
    for section, held in Settings.model_fields.items():
        model = held.annotation
        if not (isinstance(model, type) and issubclass(model, Section)):
            raise TypeError(f"{section} must be a Section, so that its keys are known")
        for name, field in model.model_fields.items():
            if name != "groups":  # users choose their names
                yield section, field.alias or name, field


def is_polling(field: FieldInfo) -> bool:
    return field.annotation is Strategy


def default_strategy(table: str) -> str:
    """The strategy of a polling table that does not name one."""
    for section, name, field in fields():
        if f"{section}.{name}" == table:
            strategy: Strategy = field.get_default(call_default_factory=True)
            return strategy.name
    raise KeyError(table)


@cache
def plain_keys() -> frozenset[str]:
    """The keys that are not parameters of strategies."""
    return frozenset(
        f"{section}.{name}" for section, name, field in fields() if not is_polling(field)
    )


def reader_of(field: FieldInfo) -> ValueReader:
    return next(each for each in field.metadata if isinstance(each, ValueReader))
