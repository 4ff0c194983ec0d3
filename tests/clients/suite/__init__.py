"""The suite of real clients: `scripts/test-clients`. pytest collects nothing here."""
