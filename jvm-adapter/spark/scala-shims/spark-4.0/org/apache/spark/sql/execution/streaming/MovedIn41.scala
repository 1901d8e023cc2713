package org.apache.spark.sql.execution
package streaming

/** Spark 4.1 moved these into packages of their own; the sources name them as they are called since. */
package object checkpointing {
  val CheckpointFileManager: streaming.CheckpointFileManager.type = streaming.CheckpointFileManager
}

package operators {
  package object stateful {
    type BaseStreamingDeduplicateExec = streaming.BaseStreamingDeduplicateExec
    type StatefulOperatorStateInfo = streaming.StatefulOperatorStateInfo
    type SessionWindowStateStoreRestoreExec = streaming.SessionWindowStateStoreRestoreExec
    type StateStoreRestoreExec = streaming.StateStoreRestoreExec
  }
}

package operators.stateful {
  package object flatmapgroupswithstate {
    type FlatMapGroupsWithStateExec = streaming.FlatMapGroupsWithStateExec
  }

  package object join {
    type StreamingSymmetricHashJoinExec = streaming.StreamingSymmetricHashJoinExec
    val StreamingSymmetricHashJoinHelper: streaming.StreamingSymmetricHashJoinHelper.type =
      streaming.StreamingSymmetricHashJoinHelper
  }

  package object transformwithstate {
    type TransformWithStateExec = streaming.TransformWithStateExec
  }
}

package object runtime {
  type StreamExecution = streaming.StreamExecution
  val StreamExecution: streaming.StreamExecution.type = streaming.StreamExecution
}
