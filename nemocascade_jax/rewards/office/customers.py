"""The tools of customer relationship management."""

from __future__ import annotations

from typing import Any

from nemocascade_jax.rewards.office.tables import (
    Office,
    ToolError,
    add,
    changed,
    find,
    has,
    next_id,
    one_of,
    page_of,
    without,
)

ID = "customer_id"
STATUSES = ("Qualified", "Won", "Lost", "Lead", "Proposal")
PRODUCTS = ("Software", "Hardware", "Services", "Consulting", "Training")
ADDRESSES = ("customer_email", "assigned_to_email")  # kept in lower case


def search_customers(
    office: Office, page: int = 1, page_size: int = 5, **wanted: str
) -> tuple[Office, Any]:
    """Returns the customers that hold every text; `..._min` and `..._max` bound dates as text."""
    wanted = {name: text for name, text in wanted.items() if text}
    if not wanted:
        raise ToolError("No search parameters provided.")
    found = [
        customer
        for customer in office.customers
        if all(_fits(customer, name, text) for name, text in wanted.items())
    ]
    return office, page_of(found, "customers", page, page_size)


def _fits(customer: Any, name: str, text: str) -> bool:
    if name.endswith("_min"):
        return "" != customer[name.removesuffix("_min")] >= text
    if name.endswith("_max"):
        return "" != customer[name.removesuffix("_max")] <= text
    return has(customer, name, text)


def update_customer(
    office: Office, customer_id: str, field: str, new_value: str
) -> tuple[Office, Any]:
    """Sets one field of a customer."""
    if field == "status":
        one_of(new_value, STATUSES, "Status")
    if field == "product_interest":
        one_of(new_value, PRODUCTS, "Product interest")
    customer = find(office.customers, ID, customer_id, "Customer")
    one_of(field, tuple(customer)[1:], "Field")
    new_value = new_value.lower() if field in ADDRESSES else new_value
    customers = changed(office.customers, customer, field, new_value)
    return office._replace(customers=customers), "Customer updated successfully."


def add_customer(
    office: Office,
    customer_name: str,
    assigned_to_email: str,
    status: str,
    customer_email: str = "",
    customer_phone: str = "",
    last_contact_date: str = "",
    product_interest: str = "",
    notes: str = "",
    follow_up_by: str = "",
) -> tuple[Office, Any]:
    """Adds a customer and returns the id."""
    customer = {
        ID: next_id(office.customers, ID),
        "assigned_to_email": assigned_to_email.lower(),
        "customer_name": customer_name,
        "customer_email": customer_email.lower(),
        "customer_phone": customer_phone,
        "last_contact_date": last_contact_date,
        "product_interest": product_interest,
        "status": status,
        "follow_up_by": follow_up_by,
        "notes": notes,
    }
    return office._replace(customers=add(office.customers, customer)), customer[ID]


def delete_customer(office: Office, customer_id: str) -> tuple[Office, Any]:
    """Takes a customer away."""
    customer = find(office.customers, ID, customer_id, "Customer")
    customers = without(office.customers, customer)
    return office._replace(customers=customers), "Customer deleted successfully."
