"""Settings of a `broker.conf` that `StoreConfig` does not have: the broker's own, those without
effect, refused ones, those that are not supported.

What Java's broker reads from the same file, as Apache RocketMQ 5.5.0 names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

UNUSED_SETTINGS: Mapping[str, str] = {
    "writeWithoutMmap": "changes how Java writes index files, never what is in them",
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
        "RocksDB's own log file stays beside the database; errors are in this process's log"
    ),
    "putConsumeQueueDataByFileChannel": (
        "changes how Java writes consume queues, never what is in them"
    ),
    "destroyMapedFileIntervalForcibly": (
        "a file that is deleted while it is read goes with its last reader"
    ),
    "redeleteHangedFileInterval": "no file hangs: see `destroyMapedFileIntervalForcibly`",
    "deleteConsumeQueueFilesInterval": (
        "the deletion of a consume queue file is a moment, with no pause behind it"
    ),
    "checkCRCOnRecover": "a recovery checks the CRC of every body that it looks at",
    "checkCommitLogOffsetOnRecover": "a recovery checks the place of every message",
    "commitLogRecoverMaxNum": "a recovery goes back to what was on disk, however many files",
    "enableAcceleratedRecovery": (
        "a recovery begins at the checkpoint's dispatch position wherever there is one"
    ),
    "messageIndexSafe": "a recovery keeps of the index what was on disk, and builds the rest",
    "recoverConcurrently": "a recovery reads the log once, and of a queue its end alone",
    "recoverThreadPoolNums": "see `recoverConcurrently`",
    "recheckReputOffsetFromCq": "the dispatch position is kept, and checked against the queues",
    "maxLmqConsumeQueueNum": "Java does not enforce it either",
    "maxTopicLength": (
        "Java does not read it either: a topic has 127 bytes at most, a retry topic 255"
    ),
}
"""Settings that are accepted and change nothing, and why."""

DECLINED_SETTINGS: Mapping[str, str] = {
    "useScanThreshold": "a vendor's fork: Apache RocketMQ has no scan of its RocksDB queues",
    "enableScanIterator": "a vendor's fork: see `useScanThreshold`",
}
"""Settings of others than Apache RocketMQ that are not going to be built, and why."""

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
        "RocketMQ's first access control is not built; the second is (docs/access.md)",
    ),
}
"""Key -> (value, reason): settings whose absence would weaken durability or security."""

_SERVED = """
authenticationEnabled authorizationEnabled autoCreateSubscriptionGroup autoCreateTopicEnable
bindAddress brokerIP1 brokerId brokerPermission brokerTopicEnable clusterTopicEnable
defaultTopicQueueNums enablePropertyFilter flushConsumerOffsetInterval
grpcClientConsumerMaxLongPollingTimeoutMillis grpcServerPort initAuthenticationUser
innerClientAuthenticationCredentials listenPort longPollingEnable
metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills metricsExporterType
metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel
metricsOtelCardinalityLimit metricsPromExporterHost metricsPromExporterPort
migrateAuthFromV1Enabled msgTraceTopicName namesrvAddr namesrvListenPort
notifyConsumerIdsChangedEnable readOnlyRefreshInterval registerBrokerTimeoutMills
registerNameServerPeriod rejectTransactionMessage shortPollingTimeMills tls.server.authClient
tls.server.mode tls.server.need.client.auth tls.server.trustCertPath tlsCertPath tlsKeyPath
traceTopicEnable transactionCheckInterval transactionCheckMax transactionTimeOut
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
defaultMessageRequestMode defaultPopShareQueueNum delayOffsetUpdateVersionStep
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
inBrokerContainer initPopOffsetByCheckMsgInMem isolateLogEnable litePullMessageEnable
litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity loadBalancePollNameServerInterval
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
serverLoadBalancerEnable skipPreOnline skipWhenCKRePutReachMaxTimes slaveReadEnable
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
"""Part of the broker -> its settings that nothing here reads."""

BROKER_SETTINGS = frozenset(_SERVED.split())
"""Settings that `tieredstore broker` reads and the store does not (`broker/settings.py`)."""

_ALL_UNSUPPORTED = frozenset[str]().union(*UNSUPPORTED_SETTINGS.values())

SETTINGS_ELSEWHERE = _ALL_UNSUPPORTED.union(
    BROKER_SETTINGS, UNUSED_SETTINGS, DECLINED_SETTINGS, REFUSED_VALUES
)
"""All of these."""


def find_unsupported(names: Iterable[str]) -> list[str]:
    """Find the settings that Java knows and nothing here reads, in order."""
    return sorted(_ALL_UNSUPPORTED.intersection(names))
