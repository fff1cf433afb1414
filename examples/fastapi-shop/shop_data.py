"""The tables of the shop, and its outbox in the same database."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from pydantic import BaseModel
from sqlalchemy import ForeignKey, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from pollwise import Outbox

#: Such as postgresql://app@db/shop, for the shop, its outbox and its queue.
DATABASE = os.environ.get("SHOP_DATABASE", "sqlite:///shop.db")

engine = create_engine(DATABASE.replace("postgresql://", "postgresql+psycopg://"))
outbox = Outbox(DATABASE)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]


class Mail(Base):
    """A confirmation that was sent: one for each order, however often its task runs."""

    __tablename__ = "mails"
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"), primary_key=True)
    to: Mapped[str]
    sent_at: Mapped[datetime] = mapped_column(default=lambda: datetime.now(UTC))


class Placed(BaseModel):
    """The payload of the event order.placed. Give new fields a default: old events may wait."""

    order: int
    customer: str


async def create_tables() -> None:
    """Create what is missing. In production, this is a step of your deployment."""
    Base.metadata.create_all(engine)
    await outbox.store.migrate()
