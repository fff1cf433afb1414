"""The routes of the shop: an order and its event are one transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from shop_data import Mail, Order, Placed, create_tables, engine, outbox

CREDIT = 100_000


class NewOrder(BaseModel):
    customer: str = Field(pattern=r"^[a-z]{1,50}$")
    cents: int = Field(gt=0)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    await create_tables()
    yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
def place(new: NewOrder) -> dict[str, int]:
    """Save the order and put its event: both are there after the commit, or neither."""
    with Session(engine) as session, session.begin():
        order = Order(customer=new.customer, cents=new.cents)
        session.add(order)
        outbox.put(
            session,
            "order.placed",
            lambda: Placed(order=order.id, customer=order.customer),  # called when it has an id
            key=f"customer-{new.customer}",
        )
        if new.cents > CREDIT:
            raise HTTPException(402, "above your credit")  # rolls back the order and its event
        return {"order": order.id}


@app.get("/mails")
def mails() -> list[dict[str, object]]:
    """The confirmations that were sent, in their order."""
    with Session(engine) as session:
        sent = session.scalars(select(Mail).order_by(Mail.sent_at))
        return [{"order": mail.order_id, "to": mail.to} for mail in sent]
