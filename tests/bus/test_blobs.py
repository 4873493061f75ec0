"""Weights travel whole or not at all."""

from __future__ import annotations

import os

import pytest

from cel_jax.bus import errors
from cel_jax.bus.blobs import BlobServer, fetch_blob
from cel_jax.bus.transport import Reply


def test_newest_version_arrives_whole(net):
    blobs, data = BlobServer(), os.urandom(100_001)
    net.server(blobs.handlers())
    client = net.client()
    assert fetch_blob(client, -1) is None
    blobs.publish(3, data)
    assert fetch_blob(client, 2, piece_bytes=1000) == (3, data)
    assert fetch_blob(client, 3) is None
    blobs.publish(4, b"")
    assert fetch_blob(client, 3) == (4, b"")
    with pytest.raises(errors.Conflict, match="4"):
        blobs.publish(4, data)


def test_a_fetch_ends_though_a_new_version_is_published(net):
    blobs, old = BlobServer(), os.urandom(10_000)
    blobs.publish(1, old)
    piece = blobs.piece

    def publish_meanwhile(request):
        if request.header["offset"] == 5000:
            blobs.publish(2, b"new")
        return piece(request)

    net.server({**blobs.handlers(), "blob_piece": publish_meanwhile})
    assert fetch_blob(net.client(), 0, piece_bytes=1000) == (1, old)


@pytest.mark.parametrize(("damage", "named"), [("flip", "CRC"), ("cut", "999"), ("forge", "SHA-256")])
def test_a_damaged_piece_is_never_used(net, damage, named):
    blobs = BlobServer()
    blobs.publish(1, b"x" * 5000)

    def damaged(request):
        good = blobs.piece(request)
        part = bytes(good.buffers[0])
        if damage == "forge":
            return blobs.piece(request) if request.header["offset"] else Reply(good.header, [part])
        return Reply(good.header, [part[:-1] if damage == "cut" else b"y" + part[1:]])

    latest = blobs.latest
    forged = {"latest": lambda r: Reply({**latest(r).header, "sha256": "0" * 64})} if damage == "forge" else {}
    net.server({**blobs.handlers(), "blob_piece": damaged, **forged})
    with pytest.raises(errors.BusError, match=f"{named}.*dropped"):
        fetch_blob(net.client(), 0, piece_bytes=1000)


def test_a_lost_server_ends_the_fetch(net):
    blobs = BlobServer()
    blobs.publish(1, b"x" * 5000)
    server = net.server({"latest": blobs.latest})
    server._handlers["blob_piece"] = lambda _: server._closing.set() or Reply()
    with pytest.raises(errors.BusError):
        fetch_blob(net.client(), 0, piece_bytes=1000, deadline_s=5)
