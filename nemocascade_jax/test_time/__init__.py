"""Test-time scaling: tool-integrated reasoning, generate-verify-refine, submission rounds, voting."""
