package org.apache.spark.sql.execution
package streaming

/** Spark 4.1 moved these into packages of their own; the sources name them as they are called since. */
package object checkpointing {
  val CheckpointFileManager: streaming.CheckpointFileManager.type = streaming.CheckpointFileManager
}

package object runtime {
  type StreamExecution = streaming.StreamExecution
  val StreamExecution: streaming.StreamExecution.type = streaming.StreamExecution
}
