"""Every bound of the system, in one place, with the relations between them asserted.

Units stand last in a name. Figures marked CF are Cloudflare Workflows' published limits.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

# names and ids
ACCOUNT_ID_CHARS_MAX = 64
WORKFLOW_NAME_CHARS_MAX = 64  # CF
SCRIPT_NAME_CHARS_MAX = 64
INSTANCE_ID_CHARS_MAX = 256  # CF allows 100; paths need more
EVENT_TYPE_CHARS_MAX = 100  # CF
STEP_NAME_CHARS_MAX = 256  # CF
ENTITY_KEY_CHARS_MAX = 512

# payloads
PAYLOAD_BYTES_MAX = 1 * MIB  # params, step results, events: CF
JSON_DEPTH_MAX = 64
STREAM_CHUNK_BYTES_MAX = 16 * MIB  # CF
STREAM_BYTES_MAX = 1024 * MIB  # CF: state of an instance
STREAM_PART_BYTES = 256 * KIB  # how much is read at a time
STREAM_LINGER_MS = MINUTE_MS  # a younger file may be about to be named by a row
STREAM_SWEEP_MS = HOUR_MS  # how often files that no row ever named are looked for
STREAM_SWEEP_NAMES = 100  # of so many files at a time
JSON_INTEGER_MAX = 2**53 - 1  # what every JSON reader carries exactly
BODY_BYTES_MAX = PAYLOAD_BYTES_MAX + 64 * KIB  # an HTTP body holds a payload and a little more
ERROR_MESSAGE_CHARS_MAX = 4 * KIB
ERROR_NAME_CHARS_MAX = 200
ERROR_DATA_BYTES_MAX = 16 * KIB
ERROR_PLACES_MAX = 8  # lines of its traceback that an error keeps
ERROR_PLACE_CHARS_MAX = 200
ATTEMPT_ERROR_PLACES_MAX = 3

# bundles: the code of apps
BUNDLE_BYTES_MAX = 8 * MIB  # as a zip; must fit an HTTP body
BUNDLE_UNPACKED_BYTES_MAX = 32 * MIB
BUNDLE_FILES_MAX = 2_000
BUNDLE_PATH_CHARS_MAX = 240
BUNDLE_DEPTH_MAX = 16
BUNDLE_WORKFLOWS_MAX = 500
BUNDLE_IMPORT_MAX_MS = 30 * SECOND_MS  # how long a bundle may take to import
BUNDLE_END_MAX_MS = 5_000  # and then to end with all that it started
BUNDLE_IMPORT_MEMORY_BYTES_MAX = 2_048 * MIB
BUNDLE_OUTPUT_CHARS_MAX = 8 * KIB  # of what its import prints, for the deployer
BUNDLE_IMPORTS_MAX = 2  # that one front end has under way
BUNDLE_IMPORTS_WAITING_MAX = 16
BUNDLE_LINGER_MS = DAY_MS  # older code that nothing needs may be removed

# instances
STEPS_PER_INSTANCE_DEFAULT = 10_000  # CF; a workflow may set another
STEPS_PER_INSTANCE_MAX = 25_000  # CF
RECORDS_PER_INSTANCE_MAX = 50_000  # steps, sleeps, waits and fired timers together
INLINE_PAYLOAD_BYTES_MAX = 512  # smaller params and outputs live in the instance's own row
STEP_RETRIES_MAX = 10_000  # CF
STEP_RETRIES_DEFAULT = 5  # CF
STEP_RETRY_DELAY_DEFAULT_MS = 10 * SECOND_MS  # CF
STEP_TIMEOUT_DEFAULT_MS = 10 * MINUTE_MS  # CF
STEP_INTERRUPTIONS_MAX = 10
DELAY_FUNCTION_MAX_MS = 5 * SECOND_MS  # CF
ATTEMPTS_SHOWN_MAX = 20
ATTEMPT_ERROR_CHARS_MAX = 512
RETRY_DELAY_MAX_MS = 365 * DAY_MS
SLEEP_MAX_MS = 365 * DAY_MS  # CF
EVENT_TIMEOUT_DEFAULT_MS = DAY_MS  # CF
EVENTS_BUFFERED_MAX = 10_000
WAITERS_PER_INSTANCE_MAX = 1_000
REQUEST_IDS_KEPT_MAX = 256
CHILDREN_PER_INSTANCE_MAX = 1_000  # that have not ended, of one instance
CHILDREN_NAMED_MAX = 16  # who waits for more is woken by any child's end
CHILD_DEPTH_MAX = 16  # how deep instances may start instances that start instances
CHILD_RETRY_MS = 500  # after a refusal that passes; it grows by as much each time
RETENTION_DEFAULT_MS = 7 * DAY_MS  # CF
RETENTION_MAX_MS = 30 * DAY_MS  # CF
DELETION_REMEMBERED_MS = 5 * MINUTE_MS  # longer than anybody repeats a request
WIPE_ROWS_MAX = 5_000  # records that one commit deletes; more go in further ones
STATUS_NOTES_INLINE_MAX = 16  # older changes of status move into rows of their own
EVENTS_PAGE_MAX = 500
EVENTS_PAGE_BYTES_MAX = 1 * MIB
EVENT_OUTPUT_BYTES_MAX = 4 * KIB  # a greater output is left out of an event
WAIT_REASONS_SHOWN_MAX = 100
EVENTS_IN_MEMORY_MAX = 1_000  # per instance that somebody subscribes to
DETERMINISTIC_CALLBACKS_PER_TURN_MAX = 1_000_000
REFUSALS_AFTER_END_MAX = 1_000  # of a run() that is over and still asks for steps
RECORDS_READ_PER_TURN_MAX = 500  # a longer journal is read with the shard's others in between
REPLAYED_PER_TURN_MAX = 500  # outcomes; a longer replay lets the shard's others in between
BODY_THREADS_MAX = 32
BODY_THREADS_ABANDONED_MAX = 64  # threads of bodies that were given up; past it none is replaced
BODY_THREADS_NOTED_MAX = 96

# the account
RUNNING_PER_ACCOUNT_DEFAULT = 50_000  # CF
QUEUED_PER_WORKFLOW_MAX = 2_000_000  # CF; a workflow may set another
QUEUED_MAX = 10_000_000  # the highest that can be set
WORKFLOWS_PER_ACCOUNT_MAX = 2_000  # CF: 500
CREATES_PER_SECOND_DEFAULT = 300  # CF: of an account
CREATES_PER_SECOND_OF_WORKFLOW_DEFAULT = 100  # CF
CREATES_PER_SECOND_MAX = 1_000_000  # the highest rate that can be set; it means no limit
RUNNING_MAX = 10_000_000  # the highest running_max that can be set
RATE_SILENT_PERIODS = 5  # after so many, a front end's rates go to others
RATE_IDLE_PERIODS = 3  # after so many without creates a front end reports no more
RATE_LEASE_MS = 1_000  # how long a first create waits for its front end's first rates
ROOM_SETTLE_PERIODS = 3  # after so many, what was let in is in what SousChefs report
ROOM_REMEMBERED_BELOW = 1_000  # a front end forgets the room of a quiet workflow if it has more
SCRIPTS_PER_ACCOUNT_MAX = 500
SOUSCHEFS_PER_WORKFLOW_DEFAULT = 1  # at first, and at least, where the number is automatic
SOUSCHEFS_PER_WORKFLOW_MAX = 64
SOUSCHEF_CREATES_PER_SECOND = 500  # of a workflow; with more it gets another SousChef
SOUSCHEF_QUEUED = 250_000  # likewise
SPREAD_LOOK_MS = 1_000  # how often that is looked at
SPREAD_SHRINK_LOOKS = 60  # looks in a row that would have done with fewer

# accounts and tokens
ACCOUNTS_MAX = 10_000
TOKENS_MAX = 10_000
TOKENS_PER_ACCOUNT_MAX = 100
LABEL_CHARS_MAX = 100  # of a name for people
TOKEN_LIFE_MIN_MS = SECOND_MS
TOKEN_LIFE_MAX_MS = 10 * 365 * DAY_MS
TOKEN_REVOKED_KEPT_MS = 5 * MINUTE_MS  # longer than anybody repeats a request
TOKEN_EXPIRED_KEPT_MS = DAY_MS  # how long an expired one is still listed
IDENTITY_FRESH_MS = 500  # an older snapshot is refreshed in the background
IDENTITY_STALE_MAX_MS = 1_000  # a still older one is refreshed before it is used
IDENTITY_CALL_MS = 1_000  # how long a front end waits for it then
TOKEN_CHECK_MS = 1_000  # how often a long wait looks whether its token is valid still
IDENTITY_LOST_MAX_MS = 15_000  # how old it may be while the registry can't be asked
AUTH_FAILURES_BURST = 20  # per address, before they are slowed
AUTH_FAILURES_PER_SECOND = 1
AUTH_ADDRESSES_MAX = 10_000  # addresses whose failures are remembered

# control plane V1, and the move from it
V1_RUNNING_MAX = 4_500  # CF: of an account
V1_CREATES_MAX = 100  # CF: of an account, in a window
V1_CREATES_WINDOW_MS = 10 * SECOND_MS
V1_RATE_BUCKETS = 100  # of a window: how fine it slides
V1_BIRTHS_PER_HEAL_MAX = 200  # Engines that one step of healing makes
V1_EXPIRED_PER_SWEEP_MAX = 500
V1_ID_LINGER_MS = MINUTE_MS  # how much longer an id is in use than its Engine says
REGISTRY_PART_ROWS_MAX = 200

CLEAR_BATCH_MAX = 100  # instances that one step of a clearing ends
CLEARING_AGAIN_MS = SECOND_MS
CLEARING_LINGER_MS = MINUTE_MS  # after it no front end can create for a workflow that is gone

# accounts on V1, and moving them to V2
MIGRATION_HEAL_MS = 10  # between two parts of a healing
MIGRATION_LOOK_MS = 2 * SECOND_MS  # how often it is looked whether all has ended, at first
MIGRATION_LOOK_MAX_MS = MINUTE_MS  # and after a while; also whether nothing is kept any more
MIGRATION_RETIRE_MAX_MS = HOUR_MS  # and that after a while
MIGRATION_RETRY_MS = 50  # after a call that failed while the account takes no calls
MIGRATION_PATIENCE_MS = 2 * SECOND_MS  # how long such a call is repeated at once
MIGRATION_AGAIN_MS = SECOND_MS  # and after that
MIGRATION_REQUESTS_KEPT_MAX = 64  # that changed migrations of an account; a late copy is known
MIGRATION_START_MAX_MS = 7 * DAY_MS  # how far ahead one may be planned

# the one-second cycle
CYCLE_PERIOD_MS = 1_000
GATEKEEPER_CALLS_PER_SECOND_MAX = 500  # C in ARCHITECTURE.md
FRONT_END_CALLS_PART = 10  # one in so many of them is left to front ends
OLDEST_NEW_EVERY = 8  # one grant in eight goes to the oldest new instance
REPORT_RETRY_MS = 2_000
REPORTS_PER_MESSAGE_MAX = 500
REPORT_MESSAGES_IN_FLIGHT_MAX = 4  # per SousChef
REPORT_GATHER_MS = 10  # how long an end waits for company where nobody waits for its slot
REPORTS_PENDING_MAX = 500_000  # per shard; past it the durable alarm repeats them
ALARM_SETTLE_MS = 1_000
CODE_RETRY_MS = 5_000
CODE_RETRY_MAX_MS = MINUTE_MS  # it doubles where each try takes a process
BROKEN_CODE_KEPT_MAX = 100  # of a shard; what is forgotten is found out anew
ENGINE_RETRY_MS = 250
ANNOUNCE_ALARM_MS = 5_000
POKE_AFTER_MS = 10_000
POKE_EVERY_MS = 5_000
POKE_HELD_AFTER_MS = MINUTE_MS  # a slot that nothing was heard of for so long is asked about
POKES_PER_TICK_MAX = 500
CONTROL_CALL_TIMEOUT_MS = 5_000
CYCLE_HELD_PERCENT = 90  # of a period, for which an answer with nothing new may be held
REVIEW_AFTER_MS = 100  # what comes together is looked at together
REVIEWS_PER_SECOND_MAX = 1_000  # held answers that are looked at
CYCLE_JITTER_PERCENT = 1  # a cycle takes up to so much longer, so that phases spread
SHARE_ROTATION_MS = 5_000  # how long odd slots stay with one; handing over takes three cycles
SLOTS_KEPT_PART = 4  # one slot in so many may be kept for workflows that use it now and then
DEMAND_PERIODS = 5  # what a SousChef expects follows from so many
SHARES_KEPT_FROM = 64  # with more workflows, their shares are not computed for each call
SHARES_KEPT_MS = 100  # but so often
LEASE_LINGER_MS = 10_000  # an idle SousChef keeps its lease for so long
LEASE_SILENT_PERIODS = 5  # after so many, a holder's demand counts no more, only its lease
LEASE_FORGET_MS = HOUR_MS  # when the Gatekeeper drops the row of one that has left
GRANTS_PER_CALL_MAX = 250
GRANTS_IN_FLIGHT_MAX = 500  # from one SousChef to one data shard
QUEUE_WINDOW_ROWS = 1_000
ENDS_REMEMBERED_MAX = 10_000
SOUSCHEF_ALARM_MS = MINUTE_MS
WORKFLOW_WEIGHT_MAX = 1_000

# entities
MAILBOX_CALLS_MAX = 10_000
ENTITIES_LIVE_MAX = 200_000  # per shard; past it the idle leave memory at once
ENTITIES_ROOMY_MAX = (
    20_000  # with fewer, even those with nothing to do may stay until they are idle
)
IDLE_EVICTION_MS = 60_000
SHARD_MEMORY_BYTES_MAX = 4_096 * MIB  # of a shard's process; past it the idle leave at once
MEMORY_CHECK_MS = 1_000
PRESSURE_IDLE_MS = 1_000  # under pressure, who has been idle for so long leaves
SWEPT_PER_TURN_MAX = 1_000
BLOCK_CONCURRENCY_MAX_MS = 30_000
ALARM_WINDOW_MS = 60_000
ALARM_WINDOW_ROWS = 4_000  # reading so many takes a few ms
ALARMS_PER_TURN_MAX = 50
PACED_PER_TURN_MAX = 64  # grants, resumes: bulk work between which calls have their turn
PACED_ROWS_MAX = 2_000  # with more than that in the open batch, bulk work waits for the disk
ALARM_LOOK_MS = 5_000  # so late is an alarm, at most, that a clock set forward has made due
ALARM_BACKOFF_MIN_MS = 2_000
ALARM_BACKOFF_MAX_MS = 15 * MINUTE_MS
ALARM_HANDLER_MAX_MS = 15 * MINUTE_MS  # CF; then it is cancelled, and the alarm fires again
BLAMED_PAUSE_MS = 30 * SECOND_MS  # how long messages wait for who ran when the process ended
ALARM_CANCEL_MAX_MS = 10 * SECOND_MS  # how long a cancelled handler may take to end
KV_KEY_BYTES_MAX = 2 * KIB
KV_VALUE_BYTES_MAX = 2 * MIB
OUTBOX_RETRY_MS = 1_000
OUTBOX_ROWS_PER_ENTITY_MAX = 10_000

# store
BATCH_ROWS_MAX = 20_000
BATCH_BYTES_MAX = 64 * MIB
BATCH_ROWS_RESERVED = 5_000  # with less room than that, a shard takes no new calls
BATCH_BYTES_RESERVED = 16 * MIB
WAL_TRUNCATE_BYTES = 64 * MIB
CHECKPOINT_PAGES = 4_000
SCAN_ROWS_MAX = 1_000
DELETED_TOGETHER_MAX = 10_000  # keys of an entity that `delete_all` deletes in one commit
FAILED_OWNERS_KEPT_MAX = 1_000
STATEMENT_ROWS_MAX = 128  # rows that one SQL statement writes
STORE_CACHE_KIB = 16 * KIB  # page cache of a shard's writer
STORE_ROOM_MIN_BYTES = 4 * MIB  # a disk with less has no room for a store
PAGES_AT_OPENING_BYTES = 128 * MIB  # of a store that are compared before it opens: some 0.15 s
SCRUB_PAGES = 64  # that are compared at a time after that, in 0.3 ms
SCRUB_FIRST_MS = 10  # between two parts of what was left at the opening
SCRUB_EVERY_MS = SECOND_MS  # and of what is compared again
SCRUB_REST_MS = HOUR_MS  # before all is compared again
OPENINGS_KEPT_MAX = 64  # of which a store knows its lineages
UPGRADE_ROWS_PER_COMMIT = 200  # that an upgrade looks at while entities live
UPGRADE_RETRY_MS = 100
STORE_BUSY_MAX_MS = 5_000  # how long a commit waits for another owner's lock
LIST_PAGE_ROWS_MAX = 1_000
COUNT_ROWS_MAX = 10_001  # of a workflow on a shard that are counted anew for each who asks
COUNTED_PER_MS = 50  # of more, what was found is told for a ms per so many
COUNTS_KEPT_MAX = 1_000  # workflows of which a shard keeps it

# transport
FRAME_BYTES_MAX = 16 * MIB
FRAME_MESSAGES_MAX = 2_000
LINK_PENDING_CALLS_MAX = 20_000
LINK_PENDING_BYTES_MAX = 128 * MIB
CALL_TIMEOUT_MS = 30_000
RECONNECT_MIN_MS = 20
RECONNECT_MAX_MS = 100  # trying costs 0.1 ms; a killed shard is back after 0.2 s
LINK_HELLO_BYTES_MAX = 1 * KIB
LINK_HELLO_MAX_MS = 5 * SECOND_MS
LINK_STALL_MAX_MS = 30 * SECOND_MS  # a peer that reads nothing for so long is cut off
LINK_WRITE_HIGH_BYTES = 4 * MIB  # past it a server stops reading from that peer
LINK_HANDOVER_MAX_MS = 1 * SECOND_MS  # how long a frame that must be out waits for its reader
LINK_SESSIONS_MAX = 1_000
LINK_PROBE_MS = 1_000  # how often a client looks whether the socket file was replaced
SOCKET_PATH_BYTES_MAX = 100  # AF_UNIX allows 107

# front ends
REQUEST_DEADLINE_MS = 30_000
WAIT_DEFAULT_MS = 60_000
WAIT_MAX_MS = 10 * MINUTE_MS
WAIT_SLICE_MS = 20_000  # a longer wait is several calls to the Engine
REQUEST_ATTEMPT_MS = 10_000  # one try of a call; it is made again until the deadline
REQUEST_BROKEN_MAX_MS = 2_000  # how long a shard that is known not to open is waited for
REQUEST_RETRY_MIN_MS = 20
REQUEST_RETRY_MAX_MS = 1_000
PLANE_MOVING_RETRY_MAX_MS = 200  # between tries while an account changes its control plane
REQUEST_ID_CHARS_MAX = 128
REQUESTS_IN_FLIGHT_MAX = 10_000
BODY_BYTES_IN_FLIGHT_MAX = 256 * MIB
BODY_READ_MAX_MS = 30_000
BATCH_BODY_BYTES_MAX = 8 * MIB
CREATE_BATCH_MAX = 100  # CF
CHANGE_BATCH_MAX = 100  # CF
QUERY_BYTES_MAX = 8 * KIB
HEAD_BYTES_MAX = 64 * KIB
HEAD_READ_MAX_MS = 10 * SECOND_MS  # from a connection's start, or a head's first byte, to its end
HTTP_IDLE_MAX_MS = 75 * SECOND_MS  # a connection between two requests
FRONTS_MAX = 64  # front ends of one server, each a process
FRONT_START_MAX_MS = 60 * SECOND_MS
FRONT_END_MAX_MS = 15 * SECOND_MS  # then a front end that was told to end is killed
FRONT_SILENCE_MAX_MS = 20 * SECOND_MS  # without a sign of life, then it is killed
FRONT_RESTART_MS = 1 * SECOND_MS  # until one that died is started again
HTTP_CONNECTIONS_MAX = 12_000  # of one front end; each costs a file descriptor
HTTP_CONNECTIONS_ADDRESS_PERCENT = 50  # of them that one address may have; loopback: all
HTTP_STALL_MAX_MS = 30 * SECOND_MS  # a client that does not read its answer is cut off
LINGER_QUIET_MS = 500  # how long a refused client may stop sending before it is hung up on
LINGER_MAX_MS = 10 * SECOND_MS  # and how long it may go on sending
RETRY_AFTER_MS = 1_000
SUBSCRIPTIONS_MAX = 2_000  # streams of events that one front end serves
SUBSCRIBER_STALL_MAX_MS = 30_000  # a consumer that reads nothing for so long is cut off
SUBSCRIBER_QUIET_MS = 15_000  # how often a quiet stream shows that it is there
QUEUE_POSITION_MAX = 1_000  # further back nobody counts
SNAPSHOT_FRESH_MS = 500  # an older snapshot is refreshed in the background
SNAPSHOT_STALE_MAX_MS = 1_000  # a still older one is refreshed before it is used
SNAPSHOT_GAP_MS = 100  # between two calls of one front end to one Account
ACCOUNTS_CACHED_MAX = 1_000
PER_PAGE_DEFAULT = 50
PER_PAGE_MAX = 500
PAGE_WALK_ROWS_MAX = 100_000  # a page by number is found by walking; beyond this use a cursor
PAGE_POSITIONS_MAX = 10_000
PAGE_POSITION_KEPT_MS = MINUTE_MS
GRAPH_SOURCE_CHARS_MAX = 1 * MIB  # of a file whose graph of steps is drawn
GRAPH_SOURCES_CHARS_MAX = 4 * MIB  # of all files of a bundle that are looked at for graphs
GRAPH_CPU_MAX_MS = 5_000  # what drawing the graphs of a bundle may cost
GRAPH_WAIT_MAX_MS = 20_000  # how long that is waited for
GRAPH_MEMORY_BYTES_MAX = 512 * MIB
GRAPHS_BYTES_MAX = 1 * MIB  # of all graphs of a bundle
GRAPH_NODES_MAX = 2_000
GRAPH_TEXT_CHARS_MAX = 200  # of a condition or a value that is shown as its source
GRAPHS_CACHED_MAX = 256
READY_TIMEOUT_MS = 2_000
READY_KEPT_MS = 500  # whoever asks in between hears what was found last
METRICS_ROWS_MAX = 2_000  # SousChefs, accounts, workflows that a shard tells figures of
METRICS_WORKFLOWS_MAX = 500  # that have series of their own; the others share one
METRICS_KEPT_MS = 500  # scrapes in between get the last page
METRICS_TIMEOUT_MS = 4_000  # how long a scrape waits for shards
READY_PROBE_MS = 5 * SECOND_MS  # how often a shard that is asked tries its disk

# the SDK client
CLIENT_RETRY_MIN_MS = 50
CLIENT_RETRY_MAX_MS = 2_000
CLIENT_RETRY_FOR_MS = 30_000
ROW_CHARS_MAX = 100_000  # of a table that is not printed at a terminal
CLI_RETRY_FOR_MS = 2_000  # people wait at the command line
CLIENT_CONNECTIONS_MAX = 100
CLIENT_PARALLEL_CREATES_MAX = 4  # batches under way in create_instances

# load tests
LOADTEST_COUNT_MAX = 10_000_000
LOADTEST_RATE_MAX = 100_000
LOADTEST_SECONDS_MAX = 24 * 3_600
LOADTEST_IN_FLIGHT_MAX = 10_000  # calls under way, of all processes together
LOADTEST_PROCESSES_MAX = 64
LOADTEST_SAMPLE_MAX = 500  # latencies of a second that its percentiles are of
LOADTEST_SWEEP_ROWS_MAX = 1_000_000  # instances whose times are read from lists
LOADTEST_PAGES_MAX = 10_000  # of a list that is walked to be timed
LOADTEST_WAIT_MS = 30_000  # how long a create that waits for the end waits
LOADTEST_START_MAX_MS = 2 * MINUTE_MS  # of a server that a test starts; and for its end
LOADTEST_END_MAX_MS = 10 * SECOND_MS  # until a process that sends has ended
# logs
LOG_LINES_MAX = 20  # of a kind that pass in a window; how many more there were is told
LOG_WINDOW_MS = 10 * SECOND_MS
LOG_KINDS_MAX = 1_000

# reports of load tests
REPORT_POINTS_MAX = 300  # of a line; a longer series is put together in buckets
REPORT_LINES_MAX = 8  # that a plot draws; the table has all
REPORT_ASIDE_TIMES = 5  # a bound that is so many times above what it bounds is not drawn
REPORT_OTHERS_MAX = 12  # plots of series, or of groups, that no report knows by name
REPORT_MARKS_MAX = 200  # faults on a time axis
REPORT_ROWS_MAX = 200  # of a table
REPORT_WORD_CHARS_MAX = 300  # of an option's value
REPORT_HDR_CHARS_MAX = 256 * KIB  # of a histogram, before it is unpacked
COMPARE_NOISE_FLOOR = 0.1  # a smaller share of a figure is no difference
COMPARE_TAIL_MIN = 11  # values beyond a percentile, to say anything of it
COMPARE_SHARE_ERROR_MIN = 0.01  # of fairness; a smaller difference is none
COMPARE_BLOCKS = 10  # that a series is cut into, to see how unsteady it is
COMPARE_FSYNC_RATIO_MAX = 4.0  # disks that differ by more are not alike

# processes
GC_THRESHOLDS = (10_000, 5, 1_000)  # objects, then collections of the younger: 50,000 take 24 ms

# workers: processes of their own for user code
WORKERS_PER_SHARD_MAX = 64  # more instances than that wait for a worker
WORKERS_FOR_OTHERS = 8  # of these one account leaves to others
WORKER_START_MAX_MS = MINUTE_MS  # from its process's start to its link
WORKER_PING_MS = 500
WORKER_SILENCE_MAX_MS = 10 * SECOND_MS  # a worker whose loop is blocked for so long is killed
WORKER_LAST_WORDS_MS = 1 * SECOND_MS  # how long a worker that ended is listened to
WORKER_IDLE_MS = 30 * SECOND_MS  # a shared worker with nothing to do ends
WORKER_CHUNK_BYTES = 4 * MIB  # of records in one message
WORKER_EVENTS_AHEAD_MAX = 8  # buffered events of a type that a worker is given before it asks
INSTANCE_DEATHS_MAX = 10  # deaths of its worker in a row, with nothing new recorded
SUSPICION_MAX = 2  # a shard's death on an instance's turn counts 2, during its thread's body 1

# supervision
HEARTBEAT_PERIOD_MS = 1_000
HEARTBEAT_SILENCE_MAX_MS = 10_000
TICK_PERIOD_MS = 100  # how often a shard's main loop shows that it turns
STARTER_CHECK_MS = 500
SHARD_START_MAX_MS = MINUTE_MS
ACTOR_START_MAX_MS = 30 * SECOND_MS  # from a shard process's start to its first sign of life
SHARD_REOPEN_MIN_MS = 100
SHARD_REOPEN_MAX_MS = 5 * SECOND_MS
SPARE_WORKER_PERIOD_MS = MINUTE_MS  # how often it is seen to that there is a spare Ray worker
DRAIN_MAX_MS = 10 * SECOND_MS
PROCESS_END_MAX_MS = 5 * SECOND_MS
ACTOR_CALLS_PENDING_MAX = 2_000
SHARDS_MAX = 64

# the test kit
TESTKIT_WAIT_MAX_MS = 730 * DAY_MS  # virtual time that a test waits for an end, if it does not say
TESTKIT_COMMITS_MAX = 20_000  # commits that a test waits for an end, if it does not say
TESTKIT_TURNS_MAX = 50_000  # turns of the loop while no virtual time passes
TESTKIT_STORY_LINES_MAX = 2_000  # the newest lines of what happened
TESTKIT_STORY_LINES_SHOWN = 40  # of them with a failure
TESTKIT_MEMORY_FREE_BYTES = 128 * MIB  # with less room its files go to the usual temporary folder
TESTKIT_EXECUTIONS_MAX = 100_000  # bodies that one simulation runs
TESTKIT_MISHAPS_MAX = 8  # crashes and pauses that one seed has: fewer than end a step
TESTKIT_SEEDS_MAX = 100_000  # seeds that one test may be played under in one run of pytest
TESTKIT_BOUNDARIES_MAX = 2_000  # commits of a script that is crashed at each of them

assert STEPS_PER_INSTANCE_DEFAULT <= STEPS_PER_INSTANCE_MAX < RECORDS_PER_INSTANCE_MAX
assert PAYLOAD_BYTES_MAX < KV_VALUE_BYTES_MAX < FRAME_BYTES_MAX
assert BODY_BYTES_MAX < FRAME_BYTES_MAX < LINK_PENDING_BYTES_MAX
assert BATCH_BYTES_MAX >= 2 * FRAME_BYTES_MAX
assert DELETED_TOGETHER_MAX < BATCH_ROWS_MAX - BATCH_ROWS_RESERVED
assert PACED_ROWS_MAX < BATCH_ROWS_MAX - BATCH_ROWS_RESERVED  # bulk work refuses no caller
assert CYCLE_PERIOD_MS <= REPORT_RETRY_MS < ANNOUNCE_ALARM_MS < POKE_AFTER_MS
assert PRESSURE_IDLE_MS < IDLE_EVICTION_MS
assert ENTITIES_ROOMY_MAX < ENTITIES_LIVE_MAX
assert 3 * CYCLE_PERIOD_MS < SHARE_ROTATION_MS < LEASE_LINGER_MS
assert CYCLE_PERIOD_MS < CONTROL_CALL_TIMEOUT_MS <= LEASE_SILENT_PERIODS * CYCLE_PERIOD_MS
assert POKE_AFTER_MS < POKE_HELD_AFTER_MS
assert HEARTBEAT_PERIOD_MS * 3 < HEARTBEAT_SILENCE_MAX_MS
assert HEARTBEAT_SILENCE_MAX_MS < ACTOR_START_MAX_MS <= SHARD_START_MAX_MS
assert TICK_PERIOD_MS < HEARTBEAT_PERIOD_MS < LINK_STALL_MAX_MS
assert BODY_THREADS_MAX + BODY_THREADS_ABANDONED_MAX <= BODY_THREADS_NOTED_MAX
assert WORKER_PING_MS * 3 < WORKER_SILENCE_MAX_MS
assert 2 * (PAYLOAD_BYTES_MAX + WORKER_CHUNK_BYTES) < FRAME_BYTES_MAX
assert PER_PAGE_MAX < LIST_PAGE_ROWS_MAX  # one more row than a page tells whether there is more
assert LINGER_QUIET_MS < LINGER_MAX_MS < HTTP_STALL_MAX_MS < HTTP_IDLE_MAX_MS
assert REQUESTS_IN_FLIGHT_MAX < HTTP_CONNECTIONS_MAX
assert SNAPSHOT_GAP_MS < SNAPSHOT_FRESH_MS < SNAPSHOT_STALE_MAX_MS
assert BUNDLE_BYTES_MAX <= BATCH_BODY_BYTES_MAX
assert REQUEST_DEADLINE_MS + SNAPSHOT_STALE_MAX_MS < CLEARING_LINGER_MS
assert BATCH_BODY_BYTES_MAX < FRAME_BYTES_MAX < BODY_BYTES_IN_FLIGHT_MAX
assert IDENTITY_FRESH_MS < IDENTITY_STALE_MAX_MS < IDENTITY_LOST_MAX_MS
assert TESTKIT_MISHAPS_MAX < STEP_INTERRUPTIONS_MAX
