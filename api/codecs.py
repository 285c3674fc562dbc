"""The codecs of a shard that is being opened, against those that it has seen.

A shard keeps a sample of each: one that is not named, or reads its sample wrongly, is refused
before anything is touched.
"""

from __future__ import annotations

from ..engines.journal import CODECS
from ..runtime.payload_codec import SAMPLE, Codecs, check_sample, missing
from ..runtime.store import Store


def settle_codecs(store: Store, codecs: Codecs) -> None:
    """Check a shard that is being opened against the codecs, and note those that are new to it.

    Raises:
        CodecMissing, CodecWrong: nothing of the shard may be touched without them.
    """
    known = {(row[0], row[1]): row[2] for row in store.scan(CODECS)}
    named = {(account, codec.id): codec for account, codec in codecs}
    for (account, codec_id), sample in known.items():
        codec = named.get((account, codec_id))
        if codec is None:
            raise missing(account, codec_id)
        check_sample(codecs.seal(account), codec, sample, account)
    for (account, codec_id), codec in named.items():
        if (account, codec_id) not in known:
            sample = codecs.seal(account).encode(codec, SAMPLE)
            store.put("codecs", CODECS, (account, codec_id, sample))
