"""What comes back from a rank that stays: read as jupyter_client reads it, and only if it is signed with our key."""

from pathlib import Path

import pytest
import zmq
from jupyter_client.session import Session

from workshop.launch.staying.channels import Channel, write_connection_files


@pytest.fixture
def channel(tmp_path: Path):
    (path,) = write_connection_files(tmp_path, 1)
    with zmq.Context() as context:
        channel = Channel(context, path, 0)
        yield channel
        channel.close()


def frames_of(session: Session, parent: str) -> list[bytes]:
    header = {"msg_id": parent, "date": "2026-01-01T00:00:00Z"}
    message = session.msg("execute_reply", {"status": "ok", "text": "größer"}, parent={"header": header})
    return session.serialize(message, ident=b"rank")


def test_a_message_is_what_jupyter_client_makes_of_it(channel: Channel) -> None:
    frames = frames_of(channel.protocol, "first")
    read = channel._read(frames)
    _identities, parts = channel.protocol.feed_identities(frames)
    theirs = channel.protocol.deserialize(parts)
    assert read["content"] == theirs["content"] == {"status": "ok", "text": "größer"}
    assert read["header"]["msg_type"] == theirs["header"]["msg_type"]
    assert read["parent_header"]["msg_id"] == theirs["parent_header"]["msg_id"] == "first"


@pytest.mark.parametrize("place", range(1, 5))
def test_a_changed_part_is_refused(channel: Channel, place: int) -> None:
    frames = frames_of(channel.protocol, "first")
    start = frames.index(b"<IDS|MSG>") + 1
    frames[start + place] = frames[start + place].replace(b"{", b'{"more": 1, ', 1)
    with pytest.raises(ValueError, match="rank 0: a message that is not signed"):
        channel._read(frames)


def test_another_key_is_refused(channel: Channel) -> None:
    with pytest.raises(ValueError, match="not signed with this group's key"):
        channel._read(frames_of(Session(key=b"another"), "first"))
