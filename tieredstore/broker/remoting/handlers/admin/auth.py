"""Users and what they may do: mqadmin's createUser, createAcl, … (codes 3001 to 3010)."""

from __future__ import annotations

import msgspec

from tieredstore.broker.auth.acls import AclManager
from tieredstore.broker.auth.policies import Acl
from tieredstore.broker.auth.users import User, UserChange, UserManager
from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.connection import Connection
from tieredstore.broker.remoting.handler_table import HandlerTable
from tieredstore.broker.remoting.handlers.fields import decode_body, read_text
from tieredstore.broker.services import BrokerServices


def register_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve them. Changes are on disk before they are answered."""
    handlers = AuthHandlers(broker)
    table.register(RequestCode.AUTH_CREATE_USER, handlers.create_user)
    table.register(RequestCode.AUTH_UPDATE_USER, handlers.update_user)
    table.register(RequestCode.AUTH_DELETE_USER, handlers.delete_user)
    table.register(RequestCode.AUTH_GET_USER, handlers.get_user)
    table.register(RequestCode.AUTH_LIST_USERS, handlers.list_users)
    table.register(RequestCode.AUTH_CREATE_ACL, handlers.update_acl)
    table.register(RequestCode.AUTH_UPDATE_ACL, handlers.update_acl)
    table.register(RequestCode.AUTH_DELETE_ACL, handlers.delete_acl)
    table.register(RequestCode.AUTH_GET_ACL, handlers.get_acl)
    table.register(RequestCode.AUTH_LIST_ACLS, handlers.list_acls)


class AuthHandlers:
    """Answers what concerns users and their policies. Where no user is checked, anybody could make
    one: everything is refused then."""

    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker

    async def create_user(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Make a user."""
        self._check()
        self._users.create_user(_read_user(request))
        await self._users.persist()
        return RemotingCommand(ResponseCode.SUCCESS)

    async def update_user(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Change a user."""
        self._check()
        self._users.update_user(_read_user(request))
        await self._users.persist()
        return RemotingCommand(ResponseCode.SUCCESS)

    async def delete_user(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Delete a user with its policies."""
        self._check()
        name = read_text(request, "username")
        # The policies first: a user that is made again has none of the old one.
        self._acls.delete_acl(f"User:{name}")
        await self._acls.persist()
        self._users.delete_user(name)
        await self._users.persist()
        return RemotingCommand(ResponseCode.SUCCESS)

    def get_user(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return a user, without its password."""
        self._check()
        user = self._users.find_user(read_text(request, "username"))
        if user is None:
            return RemotingCommand(ResponseCode.SUCCESS)
        return RemotingCommand(ResponseCode.SUCCESS, body=msgspec.json.encode(_show(user)))

    def list_users(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """List the users whose names have a text in them, without their passwords."""
        self._check()
        part = request.ext_fields.get("filter", "")
        found = [_show(user) for name, user in self._users.list_users().items() if part in name]
        return RemotingCommand(ResponseCode.SUCCESS, body=msgspec.json.encode(found))

    async def update_acl(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Add policies to those of a user."""
        self._check()
        subject = read_text(request, "subject")
        self._find_user(subject)
        self._acls.update_acl(subject, decode_body(request, Acl).policies)
        await self._acls.persist()
        return RemotingCommand(ResponseCode.SUCCESS)

    async def delete_acl(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Delete policies of a user, those of one resource or all."""
        self._check()
        subject = read_text(request, "subject")
        fields = request.ext_fields
        if not self._acls.delete_acl(subject, fields.get("policyType"), fields.get("resource")):
            return RemotingCommand(ResponseCode.POLICY_NOT_EXIST, remark="The acl is not exist.")
        await self._acls.persist()
        return RemotingCommand(ResponseCode.SUCCESS)

    def get_acl(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return the policies of a user."""
        self._check()
        acl = self._acls.find_acl(read_text(request, "subject"))
        if acl is None:
            return RemotingCommand(ResponseCode.SUCCESS)
        return RemotingCommand(ResponseCode.SUCCESS, body=msgspec.json.encode(acl))

    def list_acls(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """List the policies of subjects, and about resources, with a text in their names."""
        self._check()
        subject = request.ext_fields.get("subjectFilter", "")
        resource = request.ext_fields.get("resourceFilter", "")
        found = [
            acl
            for name, acl in self._acls.list_acls().items()
            if subject in name
            and any(
                resource in entry.resource for policy in acl.policies for entry in policy.entries
            )
        ]
        return RemotingCommand(ResponseCode.SUCCESS, body=msgspec.json.encode(found))

    @property
    def _users(self) -> UserManager:
        return self._broker.access.users

    @property
    def _acls(self) -> AclManager:
        return self._broker.access.acls

    def _check(self) -> None:
        if not self._broker.access.is_enabled:
            raise Refused(
                RefusalReason.NO_PERMISSION,
                "users are changed by users: authenticationEnabled is not set",
            )

    def _find_user(self, subject: str) -> None:
        if self._users.find_user(subject.removeprefix("User:")) is None:
            raise Refused(
                RefusalReason.INVALID_PARAMETER, f"The subject of {subject[:80]} is not exist."
            )


def _read_user(request: RemotingCommand) -> UserChange:
    change = decode_body(request, UserChange)
    return msgspec.structs.replace(change, username=read_text(request, "username"))


def _show(user: User) -> UserChange:
    return UserChange(
        username=user.username,
        user_type=user.user_type.value,
        user_status=user.user_status.value,
    )
