"""Users and permissions: mqadmin's createUser, createAcl, … (codes 3001 to 3010)."""

from __future__ import annotations

import msgspec

from tieredstore.broker.auth.policies import Acl, Action
from tieredstore.broker.auth.users import AclManager, User, UserChange, UserManager
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handler_table import Request, RequestHeader
from tieredstore.broker.remoting.handlers.base import (
    Handlers,
    answers,
    decode_body,
    succeed,
    succeed_with,
)


class UserHeader(RequestHeader):
    username: str


class UserFilterHeader(RequestHeader):
    filter: str = ""


class SubjectHeader(RequestHeader):
    """Header of requests about the policies of a subject, `User:name`."""

    subject: str


class DeleteAclHeader(RequestHeader):
    subject: str
    policy_type: str | None = None
    resource: str | None = None


class AclFilterHeader(RequestHeader):
    subject_filter: str = ""
    resource_filter: str = ""


class AuthHandlers(Handlers):
    """Handlers that manage users and policies. If the broker does not check users, they refuse all
    requests, because otherwise any client could create a user."""

    @answers(RequestCode.AUTH_CREATE_USER, UserHeader, Action.UPDATE)
    async def create_user(self, request: Request[UserHeader]) -> RemotingCommand:
        self._check()
        self._users.create_user(_read_user(request))
        await self._users.persist()
        return succeed()

    @answers(RequestCode.AUTH_UPDATE_USER, UserHeader, Action.UPDATE)
    async def update_user(self, request: Request[UserHeader]) -> RemotingCommand:
        self._check()
        self._users.update_user(_read_user(request))
        await self._users.persist()
        return succeed()

    @answers(RequestCode.AUTH_DELETE_USER, UserHeader, Action.UPDATE)
    async def delete_user(self, request: Request[UserHeader]) -> RemotingCommand:
        self._check()
        name = request.header.username
        # The policies first: a recreated user must not get the old ones.
        self._acls.delete_acl(f"User:{name}")
        await self._acls.persist()
        self._users.delete_user(name)
        await self._users.persist()
        return succeed()

    @answers(RequestCode.AUTH_GET_USER, UserHeader, Action.GET)
    def get_user(self, request: Request[UserHeader]) -> RemotingCommand:
        """Return a user without the password."""
        self._check()
        user = self._users.find_user(request.header.username)
        if user is None:
            return succeed()
        return succeed_with(_show(user))

    @answers(RequestCode.AUTH_LIST_USERS, UserFilterHeader, Action.GET)
    def list_users(self, request: Request[UserFilterHeader]) -> RemotingCommand:
        """Return the users whose names contain a string, without passwords."""
        self._check()
        part = request.header.filter
        found = [_show(user) for name, user in self._users.list_users().items() if part in name]
        return succeed_with(found)

    @answers(RequestCode.AUTH_CREATE_ACL, SubjectHeader, Action.UPDATE)
    @answers(RequestCode.AUTH_UPDATE_ACL, SubjectHeader, Action.UPDATE)
    async def update_acl(self, request: Request[SubjectHeader]) -> RemotingCommand:
        """Add policies to a user."""
        self._check()
        subject = request.header.subject
        self._find_user(subject)
        self._acls.update_acl(subject, decode_body(request, Acl).policies)
        await self._acls.persist()
        return succeed()

    @answers(RequestCode.AUTH_DELETE_ACL, DeleteAclHeader, Action.UPDATE)
    async def delete_acl(self, request: Request[DeleteAclHeader]) -> RemotingCommand:
        """Delete a user's policies, either all or those for one resource."""
        self._check()
        subject = request.header.subject
        if not self._acls.delete_acl(subject, request.header.policy_type, request.header.resource):
            return RemotingCommand(ResponseCode.POLICY_NOT_EXIST, remark="The acl is not exist.")
        await self._acls.persist()
        return succeed()

    @answers(RequestCode.AUTH_GET_ACL, SubjectHeader, Action.GET)
    def get_acl(self, request: Request[SubjectHeader]) -> RemotingCommand:
        """Return the policies of a user."""
        self._check()
        acl = self._acls.find_acl(request.header.subject)
        if acl is None:
            return succeed()
        return succeed_with(acl)

    @answers(RequestCode.AUTH_LIST_ACLS, AclFilterHeader, Action.GET)
    def list_acls(self, request: Request[AclFilterHeader]) -> RemotingCommand:
        """Return the policies whose subject and resource contain the given strings."""
        self._check()
        subject = request.header.subject_filter
        resource = request.header.resource_filter
        found = [
            acl
            for name, acl in self._acls.list_acls().items()
            if subject in name
            and any(
                resource in entry.resource for policy in acl.policies for entry in policy.entries
            )
        ]
        return succeed_with(found)

    @property
    def _users(self) -> UserManager:
        return self._broker.access.users

    @property
    def _acls(self) -> AclManager:
        return self._broker.access.acls

    def _check(self) -> None:
        if not self._broker.access.is_enabled:
            raise Refused(
                Reason.NO_PERMISSION, "users are changed by users: authenticationEnabled is not set"
            )

    def _find_user(self, subject: str) -> None:
        if self._users.find_user(subject.removeprefix("User:")) is None:
            raise Refused(Reason.INVALID_PARAMETER, f"The subject of {subject[:80]} is not exist.")


def _read_user(request: Request[UserHeader]) -> UserChange:
    change = decode_body(request, UserChange)
    return msgspec.structs.replace(change, username=request.header.username)


def _show(user: User) -> UserChange:
    return UserChange(
        username=user.username, user_type=user.user_type.value, user_status=user.user_status.value
    )
