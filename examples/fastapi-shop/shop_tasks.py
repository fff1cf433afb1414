"""What the shop does in the background: events of the outbox, tasks, and a nightly report."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pollwise import Rate, Retry, Worker
from shop_data import DATABASE, Mail, Order, Placed, engine, outbox

worker = Worker(DATABASE)


@outbox.handle("order.placed")
async def confirm_order(placed: Placed) -> None:
    """Put the task once: the outbox calls a handler again if it died before it was done."""
    task = send_confirmation.options(unique=f"confirm-{placed.order}")
    await task.put(customer=placed.customer, order=placed.order)


# A customer gets two mails at once, then one every three seconds. Others do not wait for that.
@worker.task(
    retry=Retry.exponential("5s", attempts=8), limit=Rate(20, per="1m", burst=2, by="customer")
)
def send_confirmation(customer: str, order: int) -> None:
    """Send the mail, once. A real shop calls its mail service here."""
    with Session(engine) as session, session.begin():
        if session.get(Mail, order) is None:
            print(f"mail to {customer}: thank you for order {order}", flush=True)
            session.add(Mail(order_id=order, to=f"{customer}@example.com"))


@worker.schedule("0 2 * * *", tz="Europe/Zurich")
@worker.task
def nightly_report() -> dict[str, int]:
    """Add up the orders, every night at two o'clock."""
    with Session(engine) as session:
        orders, cents = session.execute(select(func.count(), func.sum(Order.cents))).one()
    return {"orders": orders, "cents": cents or 0}
