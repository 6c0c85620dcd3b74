"""The directory of the company's addresses, and the tools of the mailbox."""

from __future__ import annotations

from typing import Any

from nemocascade_jax.rewards.office.tables import (
    Office,
    ToolError,
    add,
    field_of,
    find,
    moment,
    next_id,
    page_of,
    without,
)

ID = "email_id"


def find_address(office: Office, name: str = "") -> tuple[Office, Any]:
    """Returns the addresses that hold a name."""
    if not name:
        raise ToolError("Name not provided.")
    return office, [address for address in office.directory if name.lower() in address.lower()]


def get_email(office: Office, email_id: str, field: str) -> tuple[Office, Any]:
    """Returns one field of a mail."""
    return office, field_of(find(office.emails, ID, email_id, "Email"), field)


def search_emails(
    office: Office,
    query: str = "",
    date_min: str = "",
    date_max: str = "",
    page: int = 1,
    page_size: int = 5,
) -> tuple[Office, Any]:
    """Returns the mails that hold every word of the query, the latest first."""
    words = query.lower().split()
    low = moment(date_min, "date_min").date() if date_min else None
    high = moment(date_max, "date_max").date() if date_max else None
    found = []
    for email in office.emails:
        text = f"{email['subject']} {email['body']} {email['sender/recipient']}".lower()
        day = moment(email["sent_datetime"], "sent_datetime").date()
        if (low is None or day >= low) and (high is None or day <= high):
            found += [email] if all(word in text for word in words) else []
    found.sort(key=lambda email: moment(email["sent_datetime"], "sent_datetime"), reverse=True)
    return office, page_of(found, "emails", page, page_size)


def send_email(office: Office, recipient: str, subject: str, body: str) -> tuple[Office, Any]:
    """Puts a new mail into the outbox."""
    if "@" not in recipient or "." not in recipient:
        raise ToolError("Invalid recipient email address.")
    email = {
        ID: next_id(office.emails, ID),
        "inbox/outbox": "outbox",
        "sender/recipient": recipient.lower(),
        "subject": subject,
        "sent_datetime": office.now,
        "body": body,
    }
    return office._replace(emails=add(office.emails, email)), "Email sent successfully."


def delete_email(office: Office, email_id: str) -> tuple[Office, Any]:
    """Takes a mail away."""
    email = find(office.emails, ID, email_id, "Email")
    return office._replace(emails=without(office.emails, email)), "Email deleted successfully."


def forward_email(office: Office, email_id: str, recipient: str) -> tuple[Office, Any]:
    """Sends a mail on to somebody else."""
    email = find(office.emails, ID, email_id, "Email")
    office, _ = send_email(office, recipient, f"FW: {email['subject']}", email["body"])
    return office, "Email forwarded successfully."


def reply_email(office: Office, email_id: str, body: str) -> tuple[Office, Any]:
    """Answers a mail, or writes again to whom it was sent."""
    email = find(office.emails, ID, email_id, "Email")
    office, _ = send_email(office, email["sender/recipient"], f"RE: {email['subject']}", body)
    return office, "Email replied successfully."
