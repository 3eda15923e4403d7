"""A store plugin: counts messages put into each topic.

In a broker.conf: messageStorePlugIn=counting_store:CountingStore
"""

from collections import Counter

from tieredstore.contracts.message_store import MessageStore, PutMessageResult
from tieredstore.contracts.plugin import PluginMessageStore
from tieredstore.message.encoding import Message


class CountingStore(PluginMessageStore):
    def __init__(self, next_store: MessageStore) -> None:
        super().__init__(next_store)
        self.puts: Counter[str] = Counter()

    def put_message(self, message: Message) -> PutMessageResult:
        self.puts[message.topic] += 1
        return self.next_store.put_message(message)
