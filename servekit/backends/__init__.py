"""DEPLOYMENT -> PLAN: pure, one module a backend."""
