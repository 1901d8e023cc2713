package org.redisstate.core.concurrent

import scala.annotation.StaticAnnotation

/**
 * Names the lock of a field: the field is written only under that lock, and read under it, too,
 * unless the field is also `@volatile`. For readers; no check holds it.
 *
 * @param lock `this` for the object that has the field, else the name of a lock or a class
 */
final class GuardedBy(lock: String) extends StaticAnnotation
