"""The world of the workplace assistant: five tables, and 27 tools that read and change them (2.6)."""
