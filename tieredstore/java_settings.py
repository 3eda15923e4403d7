"""Settings of a `broker.conf` outside `StoreConfig`: those of the broker, and unused, rejected and
unsupported ones.

Names are those of Java's broker, Apache RocketMQ 5.5.0, which reads the same file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

UNUSED_SETTINGS: Mapping[str, str] = {
    "writeWithoutMmap": "changes how Java writes index files, never their content",
    "bitMapLengthConsumeQueueExt": (
        "extended units are written without a bitmap, as Java's without `enableCalcFilterBitMap`"
    ),
    "useReentrantLockWhenPutMessage": (
        "one put lock, held for microseconds: its kind changes no result"
    ),
    "useABSLock": "see `useReentrantLockWhenPutMessage`",
    "spinLockCollisionRetreatOptimalDegree": "see `useReentrantLockWhenPutMessage`",
    "topicQueueLockNum": "queue offsets are given under the put lock",
    "enableRocksDBLog": (
        "RocksDB's own log file stays beside the database. Errors are in this process's log"
    ),
    "putConsumeQueueDataByFileChannel": (
        "changes how Java writes consume queues, never their content"
    ),
    "destroyMapedFileIntervalForcibly": (
        "a file that is deleted while it is read goes with its last reader"
    ),
    "redeleteHangedFileInterval": "no file hangs: see `destroyMapedFileIntervalForcibly`",
    "deleteConsumeQueueFilesInterval": (
        "the deletion of a consume queue file takes a moment, without a pause after it"
    ),
    "checkCRCOnRecover": "a recovery checks the CRC of every body that it looks at",
    "checkCommitLogOffsetOnRecover": "a recovery checks the place of every message",
    "commitLogRecoverMaxNum": "a recovery goes back to the synced part, however far",
    "enableAcceleratedRecovery": (
        "a recovery begins at the checkpoint's dispatch position wherever there is one"
    ),
    "messageIndexSafe": "a recovery keeps the synced part of the index, and builds the rest",
    "recoverConcurrently": "a recovery reads the log once, and of a queue its end alone",
    "recoverThreadPoolNums": "see `recoverConcurrently`",
    "recheckReputOffsetFromCq": "the dispatch position is kept, and checked against the queues",
    "enableLiteEventMode": "the lite topics with messages are always noted for each client",
    "liteEventCheckInterval": "lite topics above `maxClientEventCount` get turns without a pause",
    "liteEventFullDispatchDelayTime": "see `liteEventCheckInterval`",
    "liteEventFullDispatchDelayTimeForWildcardGroup": "see `liteEventCheckInterval`",
    "maxTopicLength": (
        "Java does not read it either: a topic has 127 bytes at most, a retry topic 255"
    ),
}
"""Settings that are accepted without effect, and the reason for each."""

REMOVED_SETTINGS: Mapping[str, str] = {
    "tieredStoreWriterCheckInterval": "a fence check comes every 10 s while messages are put",
    "tieredStoreUploadRequestsPerSecond": "`tieredStoreUploadBytesPerSecond` limits uploads",
    "tieredStoreDownloadRequestsPerSecond": "`tieredStoreDownloadBytesPerSecond` limits reads",
    "tieredStoreTraceInterval": "a record of the trace covers 10 s",
    "tieredStoreTraceMaxSize": "a trace has at most 256 MiB",
    "tieredStoreDeleteFileBatchMax": "one run of the expiry deletes at most 1,000 segments",
    "tieredStorePosixMaxOpenFiles": "the Posix provider keeps at most 512 files open",
    "tieredStoreChunkGraceTime": "a merged object stays for 120 s",
    "tieredStoreChunkUploadAge": "an open multipart upload is aborted after a day",
    "tieredStoreChunkBatchSize": "fast queues gather writes of 8 MiB",
    "tieredStoreChunkMergeCount": "16 objects of about one size are merged into one",
    "tieredStoreChunkMergeSize": "small objects are merged from 8 MiB on",
    "tieredStoreChunkReadSize": "one request reads at most 8 MiB",
    "tieredStoreChunkReadThreads": "16 ranges are read at once",
    "tieredStoreChunkBlockCacheSize": "blocks of consume queues take at most 32 MiB of memory",
    "tieredStoreChunkWriteCacheSize": "writes that wait for a merge take at most 64 MiB of memory",
    "tieredStoreChunkMaintenanceThreads": "2 segments are merged, sealed or cleaned at once",
    "tieredStoreChunkStopTimeout": "a stop takes at most 20 s",
    "tieredStoreChunkHedgeShare": "at most 5 % of all reads are sent twice",
    "tieredStoreS3ConnectTimeout": "a connection may take 2 s",
    "tieredStoreS3BulkReadTimeout": "the server may copy data for 120 s",
    "tieredStoreS3MinimumRate": "a body slower than 5 MB a second is given up after its timeout",
    "tieredStoreS3BulkConnections": "merges, seals and deletions use 8 connections",
    "tieredStoreS3BytesPerSecond": (
        "`tieredStoreUploadBytesPerSecond` and `tieredStoreDownloadBytesPerSecond` limit the tier"
    ),
    "tieredStoreS3RequestsPerSecond": "requests slow down when the endpoint asks for it",
    "tieredStoreS3BulkBytesPerSecond": "the server copies the data of merges itself",
    "tieredStoreS3BulkRequestsPerSecond": "requests slow down when the endpoint asks for it",
    "tieredStoreS3ListPrice": "a LIST costs what a PUT costs (`tieredStoreS3WritePrice`)",
    "tieredStoreS3DeletePrice": "a DELETE costs nothing",
}
"""Removed settings of this project, and the behaviour that replaces each
(`docs/adr/0019-removed-settings.md`)."""

DECLINED_SETTINGS: Mapping[str, str] = {
    "useScanThreshold": "a vendor's fork: Apache RocketMQ has no scan of its RocksDB queues",
    "enableScanIterator": "a vendor's fork: see `useScanThreshold`",
}
"""Settings of other vendors that will not be supported, and the reason for each."""

REFUSED_VALUES: Mapping[str, tuple[str, str]] = {
    "brokerRole": ("SYNC_MASTER", "replication is not built"),
    "enableDLegerCommitLog": ("true", "DLedger is not built"),
    "enableControllerMode": ("true", "controller mode is not built"),
    "duplicationEnable": ("true", "duplication is not built"),
    "rocksdbCQDoubleWriteEnable": (
        "true",
        "consume queues in files and in RocksDB at the same time are not built",
    ),
    "aclEnable": (
        "true",
        "RocketMQ's first access control is not built. The second is (docs/access.md)",
    ),
}
"""Values of settings with which a process must not accept messages, with the reasons. They require
a feature that this project lacks, so durability or security would be weaker than configured."""

_SERVED = """
authenticationEnabled authorizationEnabled autoCreateMixedTopics autoCreateSubscriptionGroup
autoCreateTopicEnable bindAddress brokerIP1 brokerId brokerPermission brokerTopicEnable
clusterTopicEnable defaultMessageRequestMode defaultPopShareQueueNum defaultTopicQueueNums
enablePropertyFilter enableTopicMessageTypeCheck fastRemotingEnable flushConsumerOffsetInterval
grpcClientConsumerMaxLongPollingTimeoutMillis grpcClientConsumerMinLongPollingTimeoutMillis
grpcServerPort initAuthenticationUser initPopOffsetByCheckMsgInMem
innerClientAuthenticationCredentials listenPort loadBalancePollNameServerInterval longPollingEnable
metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills metricsExporterType
metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel
metricsOtelCardinalityLimit metricsPromExporterHost metricsPromExporterPort migrateAuthFromV1Enabled
msgTraceTopicName namesrvAddr namesrvListenPort notifyConsumerIdsChangedEnable priorityOrderAsc
readOnlyRefreshInterval registerBrokerTimeoutMills registerNameServerPeriod rejectTransactionMessage
liteSubscriptionCheckInterval liteSubscriptionCheckTimeoutMills liteTtlCheckInterval
maxClientEventCount maxLiteSubscriptionCount minLiteTTl
serverLoadBalancerEnable shortPollingTimeMills tls.server.authClient tls.server.mode
tls.server.need.client.auth tls.server.trustCertPath tlsCertPath tlsKeyPath traceTopicEnable
transactionCheckInterval transactionCheckMax transactionTimeOut
"""
_BROKER = """
accountStatsEnable accountStatsPrintZeroValues ackMessageThreadPoolNums ackThreadPoolQueueCapacity
adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity allowRecallWhenBrokerNotWriteable
appendAckAsync appendCkAsync asyncSendEnable autoDeleteUnusedStats broadcastOffsetExpireMaxSecond
broadcastOffsetExpireSecond brokerConfigPath brokerElectionPriority brokerFastFailureEnable
brokerHeartbeatInterval brokerIP2 brokerNotActiveTimeoutMillis cgColdReadThreshold
channelExpiredTimeout checkSyncStateSetPeriod cleanOfflineBrokerInterval
clearRetryTopicWhenDeleteTopic clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity
coldCtrStrategyEnable commercialBaseCount commercialSizePerMsg compatibleWithOldNameSrv
compressedRegister configBlackList configManagerVersion consumerFallbehindThreshold
consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity
consumerOffsetUpdateVersionStep controllerAddr controllerHeartBeatTimeoutMills
delayOffsetUpdateVersionStep
disableConsumeIfConsumerReadSlowly enableBroadcastOffsetStore enableCalcFilterBitMap
enableConnectionMetrics enableCreateSysGroup enableDetailStat enableFastChannelEventProcess
enableLagAndDlqMetrics enableLmqStats enableMessageStoreMetrics enableMixedMessageType
enableNetWorkFlowControl enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag
enablePopBatchAck enablePopBufferMerge enablePopLog enablePopMessageThreshold enablePopMetrics
enableRegisterProducer enableRemoteEscape enableRemotingMetrics enableRequestMetrics
enableRetryTopicV2 enableSingleTopicRegister enableSkipLongAwaitingAck enableSlaveActingMaster
enableSplitMetadata enableSplitRegistration enableStatsMetrics enableTransactionMetrics
endTransactionPoolQueueCapacity endTransactionThreadPoolNums estimateAccumulation
expectConsumerNumUseFilter fetchControllerAddrByDnsLookup fetchNameSrvAddrByDnsLookup
fetchNamesrvAddrByAddressServer fetchNamesrvAddrInterval filterDataCleanTimeSpan
filterSupportRetry flushConsumerOffsetHistoryInterval forceRegister forwardTimeout
globalColdReadThreshold heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity highSpeedMode
inBrokerContainer isolateLogEnable litePullMessageEnable
litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity
loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity lockInStrictMode
maxErrorRateOfBloomFilter maxPopPollingSize maxStatsIdleTimeInMinutes
metricLoggingExporterIntervalInMills popCkMaxBufferSize popCkOffsetMaxQueueSize
popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit popConsumerKVServiceEnable
popConsumerKVServiceInit popConsumerKVServiceLog popFromRetryProbability
popInflightMessageThreshold popLongPollingForceNotifyInterval popPollingMapExpireTimeSeconds
popPollingMapSize popPollingSize popResponseReturnActualRetryTopic popReviveMaxAttemptTimes
popReviveMaxReturnSizePerRead printChannelGroups printChannelGroupsMinNum
processReplyMessageThreadPoolNums pullMessageThreadPoolNums pullThreadPoolQueueCapacity
putMessageFutureThreadPoolNums putThreadPoolQueueCapacity queryMessageThreadPoolNums
queryThreadPoolQueueCapacity realTimeNotifyConsumerChange recallMessageEnable regionId
rejectPullConsumerEnable replyThreadPoolQueueCapacity retrieveMessageFromPopRetryTopicV1
reviveAckWaitMs reviveInterval reviveMaxSlow reviveQueueNum reviveScanTime rocketmqHome
sendHeartbeatTimeoutMillis sendMessageThreadPoolNums sendThreadPoolQueueCapacity
skipPreOnline skipWhenCKRePutReachMaxTimes slaveReadEnable
splitMetadataSize splitRegistrationSize startAcceptSendRequestTimeStamp storeReplyMessageEnable
subscriptionExpiredTimeout syncBrokerMemberGroupPeriod syncBrokerMetadataPeriod
syncControllerMetadataPeriod traceOn transactionMetricFlushInterval transactionOpBatchInterval
transactionOpMsgMaxSize transferMsgByHeap updateNameServerAddrPeriod usePIDColdCtrStrategy
useServerSideResetOffset useStaticSubscription validateSystemTopicWhenUpdateTopic
waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue waitTimeMillsInHeartbeatQueue
waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue waitTimeMillsInSendQueue
waitTimeMillsInTransactionQueue
"""
_LOCAL_STORE = """
accessMessageInMemoryHotRatio allAckInSyncStateSet asyncLearner autoMessageVersionOnTopicLen
batchDispatchRequestThreadPoolNums
bottomMostCompressionTypeForConsumeQueueStore
cleanRocksDBDirtyCQIntervalMin
cleanSwapedMapInterval coldDataFlowControlEnable coldDataScanEnable combineAssignOffsetCQType
combineCQEnableCheckSelf combineCQLoadingCQTypes combineCQMaxExtraSearchCommitLogFiles
combineCQPreferCQType commitLogForceSwapMapInterval
commitLogSwapMapInterval commitLogSwapMapReserveFileNum compactionCqMappedFileSize
compactionMappedFileSize compactionScheduleInternal compactionThreadNum
correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval dLegerGroup dLegerPeers
dLegerSelfId dataReadAheadEnable debugLockEnable defaultQueryMaxNum
disappearTimeAfterStart diskFallRecorded
dispatchCqCacheNum dispatchCqThreads dispatchFromSenderThread
enableAsyncReput enableAutoInSyncReplicas enableBatchPush
enableBuildConsumeQueueConcurrently enableCleanExpiredOffset enableCompaction
enableLogConsumeQueueRepeatedlyBuildWhenRecover
enableRunningFlagsInFlush enableScheduleAsyncDeliver enableScheduleMessageStats
flushDelayOffsetInterval haFlowControlEnable
haHousekeepingInterval haListenPort haMasterAddress haMaxGapNotInSync haMaxTimeSlaveNotCatchup
haSendHeartbeatInterval haTransferBatchSize inSyncReplicas indexFileReadEnable
indexFileWriteEnable indexRocksDBEnable logicQueueForceSwapMapInterval logicQueueSwapMapInterval
logicQueueSwapMapReserveFileNum logicalDiskSpaceCleanForciblyThreshold
mappedFileSizeTimerLog mappedFileSwapEnable
mapperFileSizeBatchConsumeQueue maxAsyncPutMessageRequests maxBatchDeleteFilesNum maxChecksumRange
maxConsumeQueueScan maxHaTransferByteInSecond maxOffsetMapSize
maxRecoveryCommitlogFiles maxSlaveResendLength memTableFlushIntervalMs
minInSyncReplicas offsetCheckInSlave
preferredLeaderId pullBatchMaxMessageCount putMessageTimeout
putMsgIndexHightWater readOnlyCommitLogStorePaths readUnCommitted realTimePersistRocksDBConfig
replicasPerDiskPartition
rocksdbCompressionType rocksdbFlushWalFrequency
rocksdbWalFileRollingThreshold sampleCountThreshold sampleSteps
scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked
searchBcqByCacheEnable searchOffsetCacheEnable slaveTimeout
statRocksDBCQIntervalSec storePathBrokerIdentity storePathDLedgerCommitLog storePathEpochFile
syncFromLastFile syncMasterFlushOffsetWhenStartup timerColdDataCheckIntervalMs
timerCongestNumEachSlot timerEnableCheckMetrics timerEnableRetryUntilSuccess timerFlushIntervalMs
timerGetMessageThreadNum timerInterceptDelayLevel timerMaxDelaySec timerMetricSmallThreshold
timerPrecisionMs timerProgressLogIntervalMs timerPutMessageThreadNum timerRollWindowSlot
timerSkipUnknownError timerStopEnqueue timerWheelEnable totalReplicas
"""
_NETWORK = """
channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads
clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientOnewaySemaphoreValue
clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize
clientWorkerThreads connectTimeoutMillis disableCallbackExecutor disableNettyWorkerGroup
enableReconnectForGoAway enableShutdownGracefully maxReconnectIntervalTimeSeconds
scanAvailableNameSrv serverAsyncSemaphoreValue serverCallbackExecutorThreads
serverChannelMaxIdleTimeSeconds serverNettyWorkerGroupEnable serverOnewaySemaphoreValue
serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads shutdownWaitTimeSeconds
socksProxyConfig useEpollNativeSelector useTLS writeBufferHighWaterMark writeBufferLowWaterMark
"""
_ACCESS_CONTROL = """
aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond authConfigPath
authenticationMetadataProvider authenticationProvider authenticationStrategy
authenticationWhitelist authorizationMetadataProvider authorizationProvider authorizationStrategy
authorizationWhitelist clusterName configName
statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum userCacheExpiredSecond
userCacheMaxNum userCacheRefreshSecond
"""

UNSUPPORTED_SETTINGS: Mapping[str, frozenset[str]] = {
    "Broker": frozenset(_BROKER.split()),
    "Local store": frozenset(_LOCAL_STORE.split()),
    "Network": frozenset(_NETWORK.split()),
    "Access control": frozenset(_ACCESS_CONTROL.split()),
}
"""Java's settings that this project does not read, grouped by the part of the broker that they
belong to."""

BROKER_SETTINGS = frozenset(_SERVED.split())
"""Settings that `tieredstore broker` reads and the store does not (`broker/settings.py`)."""

_ALL_UNSUPPORTED = frozenset[str]().union(*UNSUPPORTED_SETTINGS.values())

SETTINGS_ELSEWHERE = _ALL_UNSUPPORTED.union(
    BROKER_SETTINGS, UNUSED_SETTINGS, REMOVED_SETTINGS, DECLINED_SETTINGS, REFUSED_VALUES
)
"""All settings of this module."""


def find_unsupported(names: Iterable[str]) -> list[str]:
    """Return the settings that Java has but this project does not read, in order."""
    return sorted(_ALL_UNSUPPORTED.intersection(names))
