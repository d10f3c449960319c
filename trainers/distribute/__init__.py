"""Strategies and the rendezvous of several processes."""
