"""The graph of stages: runs, resumes and records them in the ledger."""
