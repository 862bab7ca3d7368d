"""Certificates proven again, by code that shares nothing with the engines that wrote them."""
