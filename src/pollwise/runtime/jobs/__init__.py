"""Jobs as values: `new_job` is what is put, `job` what is claimed and how it ends, and `fields` has
the limits and the checks of its fields.
"""

from pollwise.runtime.jobs.fields import DELAY_MAX as DELAY_MAX
from pollwise.runtime.jobs.fields import ERROR_LENGTH_MAX as ERROR_LENGTH_MAX
from pollwise.runtime.jobs.fields import MAX_HEADER_BYTES as MAX_HEADER_BYTES
from pollwise.runtime.jobs.fields import NAME_LENGTH_MAX as NAME_LENGTH_MAX
from pollwise.runtime.jobs.fields import PRIORITY_MAX as PRIORITY_MAX
from pollwise.runtime.jobs.fields import checked_delay as checked_delay
from pollwise.runtime.jobs.fields import checked_moment as checked_moment
from pollwise.runtime.jobs.fields import checked_name as checked_name
from pollwise.runtime.jobs.fields import storable as storable
from pollwise.runtime.jobs.job import ACTIONS as ACTIONS
from pollwise.runtime.jobs.job import ENDED as ENDED
from pollwise.runtime.jobs.job import ERRORS_KEPT as ERRORS_KEPT
from pollwise.runtime.jobs.job import LAPSES_ALONE as LAPSES_ALONE
from pollwise.runtime.jobs.job import MAX_LEASE as MAX_LEASE
from pollwise.runtime.jobs.job import MAX_RESULT_BYTES as MAX_RESULT_BYTES
from pollwise.runtime.jobs.job import PROGRESS_NOTE_MAX as PROGRESS_NOTE_MAX
from pollwise.runtime.jobs.job import RESULT_TTL as RESULT_TTL
from pollwise.runtime.jobs.job import STATES as STATES
from pollwise.runtime.jobs.job import TRACEBACK_FOLLOWS as TRACEBACK_FOLLOWS
from pollwise.runtime.jobs.job import TRACEBACK_LENGTH_MAX as TRACEBACK_LENGTH_MAX
from pollwise.runtime.jobs.job import UNKNOWN_HEADERS as UNKNOWN_HEADERS
from pollwise.runtime.jobs.job import Claim as Claim
from pollwise.runtime.jobs.job import Job as Job
from pollwise.runtime.jobs.job import JobFailure as JobFailure
from pollwise.runtime.jobs.job import JobInfo as JobInfo
from pollwise.runtime.jobs.job import Progress as Progress
from pollwise.runtime.jobs.job import Renewal as Renewal
from pollwise.runtime.jobs.job import Settlement as Settlement
from pollwise.runtime.jobs.job import SettlementAction as SettlementAction
from pollwise.runtime.jobs.job import State as State
from pollwise.runtime.jobs.job import repr_without as repr_without
from pollwise.runtime.jobs.job import worker_of_lapse as worker_of_lapse
from pollwise.runtime.jobs.new_job import NewJob as NewJob
from pollwise.runtime.payloads.encoding import encode as encode
