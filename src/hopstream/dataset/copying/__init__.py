"""Copies datasets between machines and object stores, checked and in resumable tasks."""
